package translate

import (
	"slices"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// offered returns the tools of a request. Where the provider has no allowed_tools, only those are offered.
func (r *request) offered() []tool {
	if len(r.choice.allowed) == 0 {
		return r.tools
	}
	return slices.DeleteFunc(slices.Clone(r.tools), func(t tool) bool {
		return !slices.Contains(r.choice.allowed, t.name)
	})
}

// wrapped is the schema of a custom tool for a provider that only has functions.
const wrapped = `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],` +
	`"additionalProperties":false}`

func (t tool) schemaOr() []byte {
	switch {
	case t.custom:
		return []byte(wrapped)
	case len(t.schema) == 0 || rawjson.IsNull(t.schema):
		return []byte(`{"type":"object","properties":{}}`)
	case t.schema[0] == '{' && len(rawjson.At(t.schema, "type")) == 0:
		return rawjson.SetFieldString(t.schema, "type", "object")
	}
	return t.schema
}

func text0(s string) any {
	if s == "" {
		return []byte(nil)
	}
	return s
}

func list(elems [][]byte) []byte {
	if len(elems) == 0 {
		return nil
	}
	return rawjson.Array(elems)
}

func number(n int64) []byte {
	if n <= 0 {
		return nil
	}
	return rawjson.Encode(n)
}

func (r *request) saidCaches() {
	has := func(parts []part) bool {
		return slices.ContainsFunc(parts, func(p part) bool { return p.cache != "" })
	}
	found := has(r.system) || slices.ContainsFunc(r.tools, func(t tool) bool { return t.cache != "" }) ||
		slices.ContainsFunc(r.turns, func(t turn) bool { return has(t.parts) })
	if found {
		r.drop("cache breakpoints")
	}
}
