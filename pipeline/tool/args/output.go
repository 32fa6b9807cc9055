package args

import "strings"

// Check checks a JSON value against a schema. It returns what is wrong in one line, up to five issues; empty if nothing
// is, if there is no schema, or if the schema cannot be used.
func (p *Parser) Check(schema, raw []byte) string {
	if len(schema) == 0 {
		return ""
	}
	s := p.schema(schema, false)
	if s.err != nil {
		return ""
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
