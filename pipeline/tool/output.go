package tool

import (
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// MarkOutputSchema is the key of the result metadata that says how a result differs from the tool's output schema. The
// result itself goes on unchanged: the tool's work is done, and a wrong schema must not hide it.
const MarkOutputSchema = "outputSchema"

// maxChecked is the size of the largest result that is checked against its schema, in bytes.
const maxChecked = 1 << 20

// CheckOutput checks a result against the tool's output schema: the structured content if there is any, else the
// content, where text that is not JSON counts as a string. It returns what is wrong in one line; empty if nothing is,
// if the tool has no output schema, or if the result is too large to be checked.
func (d *Definition) CheckOutput(p *args.Parser, content []byte, structured json.RawMessage) string {
	if len(d.OutputSchema) == 0 || len(content)+len(structured) > maxChecked {
		return ""
	}
	raw := content
	switch {
	case len(structured) > 0:
		raw = structured
	case d.Executor.Kind == ExecMCP && IsNativeMCP(content):
		own := gjson.GetBytes(content, "structuredContent")
		if AsksForInput(content) || !own.Exists() {
			return ""
		}
		raw = []byte(own.Raw)
	case !json.Valid(content):
		raw = rawjson.Encode(string(content))
	}
	return p.Check(d.OutputSchema, raw)
}
