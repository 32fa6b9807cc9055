package toolspec

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// MarkOutputSchema is the key of the result metadata that says where a result is not as the tool's output schema has
// it. The result itself goes on as it is: what the tool did is done, and a wrong schema must not hide it.
const MarkOutputSchema = "outputSchema"

// maxChecked is the largest result that is held against its schema, in bytes.
const maxChecked = 1 << 20

// CheckOutput holds a result against the tool's output schema: the structured content if there is any, else the content,
// a text that is no JSON as a string. It returns what is wrong in one line; empty if nothing is, if the tool has no
// output schema, or if the result is too large to look at.
func (p *Parser) CheckOutput(def *Definition, content []byte, structured json.RawMessage) string {
	if len(def.OutputSchema) == 0 || len(content)+len(structured) > maxChecked {
		return ""
	}
	s := p.schema(def.OutputSchema)
	if s.err != nil {
		return ""
	}
	raw := content
	switch {
	case len(structured) > 0:
		raw = structured
	case def.Executor.Kind == ExecMCP && IsNativeMCP(content):
		own := gjson.GetBytes(content, "structuredContent")
		if AsksForInput(content) || !own.Exists() {
			return ""
		}
		raw = []byte(own.Raw)
	case !json.Valid(content):
		raw = rawjson.Encode(string(content))
	}
	v, err := parseValue(raw)
	if err != nil {
		return err.Error()
	}
	r := &run{s: s, budget: new(trialBudget)}
	r.validate(v)
	var out []string
	for i, issue := range r.issues {
		if i == 5 {
			out = append(out, "...")
			break
		}
		out = append(out, strings.TrimPrefix(issue.Path+": ", ": ")+issue.Message)
	}
	return strings.Join(out, "; ")
}
