package tools_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// Loose arguments in each mode of coercion, over the bus.
func TestCoercionModes(t *testing.T) {
	t.Parallel()
	schema := `{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"},"tags":{"type":"array",` +
		`"items":{"type":"integer"}},` +
		`"o":{"$ref":"#/$defs/o"},"e":{"enum":["red","blue"]},"u":{"anyOf":[{"type":"integer"},{"type":"boolean"}]}},` +
		`"$defs":{"o":{"type":"object","properties":{"x":{"type":"number"}}}}}`
	h := toolHost(t, "tool:\n  tools:\n"+
		"    - {name: documents, executor: \"go:echo\", effect: read, coercion: documents, input-schema: "+schema+"}\n"+
		"    - {name: extended, executor: \"go:echo\", effect: read, coercion: extended, input-schema: "+schema+"}\n"+
		"    - {name: 'off', executor: \"go:echo\", effect: read, coercion: 'off', input-schema: "+schema+"}\n")
	for _, r := range []struct{ args, documents, extended, off string }{ // empty: refused
		{`{"n":"3"}`, `{"n":3}`, `{"n":3}`, ``},
		{`{"n":9007199254740993}`, `{"n":9007199254740993}`, `{"n":9007199254740993}`, `{"n":9007199254740993}`},
		{`{"s":3}`, `{"s":"3"}`, `{"s":"3"}`, ``},
		{`{"tags":"[1,2]"}`, ``, `{"tags":[1,2]}`, ``},
		{`{"tags":["1",2]}`, `{"tags":[1,2]}`, `{"tags":[1,2]}`, ``},
		{`{"o":{"x":"1.50"}}`, `{"o":{"x":1.5}}`, `{"o":{"x":1.5}}`, ``},
		{`{"o":"{\"x\":1}"}`, ``, `{"o":{"x":1}}`, ``},
		{`{"e":"green"}`, ``, ``, ``},
		{`{"u":"7"}`, ``, `{"u":7}`, ``},
		{`{"n":null}`, `{}`, `{}`, ``},
	} {
		for tool, want := range map[string]string{"documents": r.documents, "extended": r.extended, "off": r.off} {
			m := ask(t, h.Conn, "shallot.v1.tool.request."+tool, r.args)
			if want == "" {
				require.Equal(t, string(messages.InvalidArguments), m.Header.Get("Shallot-Fault"), "%s %s: %s", tool, r.args,
					m.Data)
				require.NotEmpty(t, gjson.GetBytes(m.Data, "error.param").String())
				continue
			}
			require.Equal(t, want, string(m.Data), "%s %s", tool, r.args)
		}
	}
}

// A single value becomes an array of one only where that is asked for.
func TestWrapScalars(t *testing.T) {
	t.Parallel()
	tool := "  tools:\n    - {name: echo_tags, executor: \"go:echo\", effect: read, input-schema: {type: object, " +
		"properties: {tags: {type: array, items: {type: string}}}}}\n"
	for arguments, want := range map[string]string{"coercion: extended, wrap-scalars: true": `{"tags":["7"]}`,
		"coercion: extended": ``, "wrap-scalars: true": ``} {
		h := toolHost(t, "tool:\n  arguments: {"+arguments+"}\n"+tool)
		m := ask(t, h.Conn, "shallot.v1.tool.request.echo_tags", `{"tags":7}`)
		if want == "" {
			require.Equal(t, string(messages.InvalidArguments), m.Header.Get("Shallot-Fault"), arguments)
			continue
		}
		require.Equal(t, want, string(m.Data), arguments)
	}
}

// AR-5, AR-7, AR-30, X-50: integer-bits 32 is the limit of the specification, unless the schema names another.
func TestIntegerBits(t *testing.T) {
	t.Parallel()
	h := toolHost(t, "tool:\n  arguments: {integer-bits: 32}\n  tools:\n"+
		"    - {name: plain, executor: \"go:echo\", effect: read, input-schema: {type: object, properties: "+
		"{v: {type: integer}}}}\n"+
		"    - {name: wide, executor: \"go:echo\", effect: read, input-schema: {type: object, properties: "+
		"{v: {type: integer, format: int64}}}}\n")
	for _, v := range []string{`2147483647`, `2147483647.0`, `"-2147483648"`} {
		require.Equal(t, `{"v":`+strings.Trim(strings.TrimSuffix(v, ".0"), `"`)+`}`,
			string(ask(t, h.Conn, "shallot.v1.tool.request.plain", `{"v":`+v+`}`).Data))
	}
	for _, v := range []string{`2147483648`, `2147483648.0`, `"2147483648"`, `1e10`, `3000000000`} {
		m := ask(t, h.Conn, "shallot.v1.tool.request.plain", `{"v":`+v+`}`)
		require.Equal(t, string(messages.InvalidArguments), m.Header.Get("Shallot-Fault"), "%s: %s", v, m.Data)
		require.Contains(t, string(m.Data), "out of int range")
	}
	require.Equal(t, `{"v":3000000000}`, string(ask(t, h.Conn, "shallot.v1.tool.request.wide", `{"v":3000000000}`).Data),
		"AR-30")
}
