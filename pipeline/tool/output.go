package tool

import (
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// MarkOutputSchema is the key of the result metadata that says where a result is not as the tool's output schema has
// it. The result itself goes on as it is: what the tool did is done, and a wrong schema must not hide it.
const MarkOutputSchema = "outputSchema"

// maxChecked is the largest result that is held against its schema, in bytes.
const maxChecked = 1 << 20

// CheckOutput holds a result against the tool's output schema: the structured content if there is any, else the content,
// a text that is no JSON as a string. It returns what is wrong in one line; empty if nothing is, if the tool has no
// output schema, or if the result is too large to look at.
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
