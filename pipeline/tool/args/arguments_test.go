package args_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

const bad = "!"

func codes(f *args.Faults) []string {
	if f == nil {
		return nil
	}
	var out []string
	for _, i := range f.Issues {
		out = append(out, i.Parameter+":"+i.Code)
	}
	return out
}

// TestTypes holds the table of AR-1 to AR-18 for one optional parameter: input, then what the tool gets, or "!" for a
// type_mismatch.
func TestTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row, typ string
		bits     int
		in, want []string
	}{
		{"text comes from text, numbers and booleans (AR-1)", "string", 0, []string{`"x"`, `3`, `3.5`, `true`},
			[]string{`"x"`, `"3"`, `"3.5"`, `"true"`}},
		{"lists and objects are not text (AR-2)", "string", 0, []string{`[1]`, `{}`}, []string{bad, bad}},
		{"whole numbers are integers, however they are written (AR-4)", "integer", 0,
			[]string{`3`, `3.0`, `-0.0`, `2147483647.0`}, []string{`3`, `3`, `0`, `2147483647`}},
		{"fractions and what is out of range are not integers (AR-5)", "integer", 32,
			[]string{`3.5`, `1e10`, `2147483648`, `2147483648.0`, `"NaN"`}, []string{bad, bad, bad, bad, bad}},
		{"fractions and what is out of 64 bits are not integers (AR-5)", "integer", 0,
			[]string{`3.5`, `1e10`, `2147483648`, `1700000000000`, `9007199254740993`, `9223372036854775808`},
			[]string{bad, `10000000000`, `2147483648`, `1700000000000`, `9007199254740993`, bad}},
		{"text that spells an integer is one (AR-6)", "integer", 0, []string{`"3"`, `" 3 "`, `"+3"`, `"-0"`, `"-2147483648"`},
			[]string{`3`, `3`, `3`, `0`, `-2147483648`}},
		{"other text is not an integer (AR-7)", "integer", 32,
			[]string{`"3.0"`, `"1e3"`, `"2147483648"`, `"abc"`, `"0x10"`, `"1_000"`, `""`, `"+-3"`, `"--3"`},
			[]string{bad, bad, bad, bad, bad, bad, bad, bad, bad}},
		{"booleans, lists and objects are not integers (AR-8)", "integer", 0, []string{`true`, `[]`, `{}`},
			[]string{bad, bad, bad}},
		{"numbers pass unchanged (AR-9)", "number", 0, []string{`3`, `3.5`, `12345678901234567890`},
			[]string{`3`, `3.5`, `12345678901234567890`}},
		{"text that spells a decimal number is one (AR-10)", "number", 0,
			[]string{`"3.14"`, `" 3 "`, `"1e3"`, `".5"`, `"5."`}, []string{`3.14`, `3`, `1000`, `0.5`, `5`}},
		{"other text is not a number (AR-11)", "number", 0, []string{`"abc"`, `"1,5"`, `""`, `true`, `[]`},
			[]string{bad, bad, bad, bad, bad}},
		{"words and notations that JSON does not have are not numbers (AR-12)", "number", 0,
			[]string{`"NaN"`, `"Infinity"`, `"3d"`, `"0x1p3"`}, []string{bad, bad, bad, bad}},
		{"the two words are booleans in any case (AR-13)", "boolean", 0, []string{`true`, `"true"`, `"TRUE"`, `"False"`},
			[]string{`true`, `true`, `true`, `false`}},
		{"nothing else is a boolean (AR-14)", "boolean", 0, []string{`"1"`, `"yes"`, `" true "`, `""`, `1`, `0`},
			[]string{bad, bad, bad, bad, bad, bad}},
		{"lists and objects pass unchanged (AR-15)", "array", 0, []string{`[1]`}, []string{`[1]`}},
		{"lists and objects pass unchanged (AR-15)", "object", 0, []string{`{}`}, []string{`{}`}},
		{"text is never read as a list or an object, nor one as the other (AR-16)", "array", 0, []string{`"[1]"`, `{}`},
			[]string{bad, bad}},
		{"text is never read as a list or an object, nor one as the other (AR-16)", "object", 0, []string{`"{}"`, `[]`},
			[]string{bad, bad}},
		{"a type that does not exist takes nothing (AR-18)", "date", 0, []string{`"2026-01-01"`, `3`, `{}`},
			[]string{bad, bad, bad}},
	} {
		var p args.Parser
		for i, in := range c.in {
			t.Run(c.typ+" "+in+": "+c.row, func(t *testing.T) {
				t.Parallel()
				def := []byte(`{"type":"object","properties":{"a":{"type":"` + c.typ + `"}}}`)
				got, faults := p.Parse(def, []byte(`{"a":`+in+`}`), args.Options{IntegerBits: c.bits})
				if c.want[i] == bad {
					require.Equal(t, []string{"a:type_mismatch"}, codes(faults))
					if c.typ == "date" {
						require.Contains(t, faults.Error(), "unknown target type")
					}
					return
				}
				require.Nil(t, faults)
				require.Equal(t, `{"a":`+c.want[i]+`}`, string(got.Raw()))
			})
		}
	}
}

func TestRequired(t *testing.T) {
	t.Parallel()
	var p args.Parser
	one := func(typ string) []byte {
		return []byte(`{"type":"object","required":["a"],"properties":{"a":{"type":"` + typ + `"}}}`)
	}
	for in, want := range map[string]string{
		`{}`: "missing", `{"a":null}`: "null_or_empty", `{"a":""}`: "null_or_empty", `{"a":"   "}`: "null_or_empty",
		`{"a":"\t\n"}`: "null_or_empty",
	} {
		_, f := p.Parse(one("string"), []byte(in), args.Options{})
		require.Equal(t, []string{"a:" + want}, codes(f), "AR-19 %s", in)
	}
	for typ, in := range map[string]string{"boolean": "false", "integer": "0", "array": "[]", "object": "{}"} {
		_, f := p.Parse(one(typ), []byte(`{"a":`+in+`}`), args.Options{})
		require.Nil(t, f, "AR-20 %s", in)
	}
	_, f := p.Parse([]byte(`{"required":["a"],"properties":{"a":{"type":"integer","default":3}}}`), []byte(`{}`),
		args.Options{})
	require.Equal(t, []string{"a:missing"}, codes(f), "AR-21")
	for _, in := range []string{"\u3000", " ", "\u200b"} {
		_, f := p.Parse(one("string"), []byte(`{"a":"`+in+`"}`), args.Options{})
		require.Equal(t, []string{"a:null_or_empty"}, codes(f), "AR-29 %q", in)
	}
	_, f = p.Parse([]byte(`{"required":["a","b"],"properties":{"c":{"type":"integer"},"b":{"type":"string"},`+
		`"a":{"type":"string"}}}`), []byte(`{"c":"x"}`), args.Options{})
	require.Equal(t, []string{"a:missing", "b:missing"}, codes(f), "AR-24: two missing, and no type error yet")
	_, f = p.Parse([]byte(`{"required":["a"],"properties":{"a":{"type":"string","minLength":0}}}`), []byte(`{"a":""}`),
		args.Options{})
	require.Nil(t, f, "an explicit minLength 0 may be empty")
	_, f = p.Parse([]byte(`{"required":["a"],"properties":{"a":{"type":["string","null"]}}}`), []byte(`{"a":null}`),
		args.Options{})
	require.Nil(t, f, "a schema that names null takes it (strict tools of OpenAI)")
}

func TestOptional(t *testing.T) {
	t.Parallel()
	var p args.Parser
	for _, in := range []string{`{}`, `{"a":null}`} {
		a, f := p.Parse([]byte(`{"properties":{"a":{"type":"integer","default":"5"},"b":{"type":"integer",`+
			`"default":9007199254740993}}}`), []byte(in), args.Options{})
		require.Nil(t, f)
		require.Equal(t, `{"a":"5","b":9007199254740993}`, string(a.Raw()), "AR-22: the default, not coerced")
		a, f = p.Parse([]byte(`{"properties":{"a":{"type":"integer"}}}`), []byte(in), args.Options{})
		require.Nil(t, f)
		require.False(t, a.Has("a"), "AR-23")
	}
	_, f := p.Parse([]byte(`{"properties":{"z":{"type":"integer"},"a":{"type":"boolean"}}}`), []byte(`{"a":"no","z":"x"}`),
		args.Options{})
	require.Equal(t, []string{"z:type_mismatch", "a:type_mismatch"}, codes(f), "AR-25: in the order of the schema")
	a, f := p.Parse([]byte(`{"properties":{"a":{"type":"string"}}}`), []byte(`{"x":1,"a":"v"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"a":"v"}`, string(a.Raw()), "AR-26")
	require.Equal(t, []args.Change{{Path: "/x", From: "1", Rule: args.RuleDropped}}, a.Changes,
		"dropped and recorded")
	a, f = p.Parse([]byte(`{"additionalProperties":{"type":"integer"},"properties":{"a":{"type":"string"}}}`),
		[]byte(`{"x":"1","a":"v"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"a":"v","x":1}`, string(a.Raw()), "AR-26: kept where the schema says additionalProperties")
	a, f = p.Parse([]byte(`{"additionalProperties":false,"properties":{"a":{"type":"string"}}}`),
		[]byte(`{"x":1,"a":"v"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"a":"v"}`, string(a.Raw()), "AR-26: no error under additionalProperties false either")
	a, f = p.Parse([]byte(`{"patternProperties":{"^x-":{"type":"integer"}},"properties":{}}`), []byte(`{"x-a":"1"}`),
		args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"x-a":1}`, string(a.Raw()))
	for _, in := range []string{``, `null`, `{}`, `""`, `"{}"`} {
		a, f = p.Parse([]byte(`{"properties":{"a":{"type":"string"}}}`), []byte(in), args.Options{})
		require.Nil(t, f, "AR-27 %q", in)
		require.Zero(t, a.Len())
	}
	for _, in := range []string{`""`, `"  "`} {
		a, f = p.Parse([]byte(`{"properties":{"a":{"type":"string"}}}`), []byte(`{"a":`+in+`}`), args.Options{})
		require.Nil(t, f, "AR-28")
		require.Equal(t, `{"a":`+in+`}`, string(a.Raw()))
	}
	a, f = p.Parse([]byte(`{"properties":{"a":{"type":"integer","format":"int64"}}}`), []byte(`{"a":3000000000}`),
		args.Options{IntegerBits: 32})
	require.Nil(t, f, "AR-30")
	n, ok := a.GetInt("a")
	require.True(t, ok)
	require.Equal(t, int64(3000000000), n)
}

func TestParsedArgs(t *testing.T) { // S2-ARG-14
	t.Parallel()
	var p args.Parser
	a, f := p.Parse([]byte(`{"properties":{"s":{"type":"string"},"n":{"type":"number"},"o":{"type":"object"}}}`),
		[]byte(`{"o":{"b":1.50,"a":"é"},"n":9007199254740993,"s":"x"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"s":"x","n":9007199254740993,"o":{"b":1.50,"a":"é"}}`, string(a.Raw()))
	require.Equal(t, `{"n":9007199254740993,"o":{"a":"é","b":1.5},"s":"x"}`, string(a.Canonical()))
	s, _ := a.GetString("s")
	require.Equal(t, "x", s)
	require.Equal(t, json.RawMessage("7"), a.GetOrDefault("zz", json.RawMessage("7")))
	require.Equal(t, json.Number("9007199254740993"), a.ToMap()["n"])
	_, ok := a.GetInt("s")
	require.False(t, ok)
}

func TestDepth(t *testing.T) { // the table at every depth; values that fit are not touched
	t.Parallel()
	var p args.Parser
	schema := `{"type":"object","$defs":{"item":{"type":"object","required":["n"],` +
		`"properties":{"n":{"type":"integer"},"s":{"type":"string"}}}},"properties":{"list":{"type":"array",` +
		`"items":{"$ref":"#/$defs/item"}},"u":{"anyOf":[{"type":"integer"},{"type":"null"}]},"t":{"type":["integer",` +
		`"string"]}}}`
	a, f := p.Parse([]byte(schema), []byte(`{"list":[{"n":"1","s":2},{"n":3}],"u":"4","t":"5"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"list":[{"n":1,"s":"2"},{"n":3}],"u":4,"t":"5"}`, string(a.Raw()))
	_, f = p.Parse([]byte(schema), []byte(`{"list":[{"n":"x"},{}],"u":"y"}`), args.Options{})
	require.Equal(t, []string{"list:type_mismatch", "list:missing", "u:type_mismatch"}, codes(f))
	require.Equal(t, "/list/0/n", f.Issues[0].Path)
	require.Equal(t, "/list/1/n", f.Issues[1].Path)
	require.Equal(t, "integer or null", f.Issues[2].Expected)
}

func TestExtended(t *testing.T) {
	t.Parallel()
	var p args.Parser
	for name, c := range map[string]struct{ schema, in, want string }{
		"array in a string": {`{"properties":{"a":{"type":"array","items":{"type":"integer"}}}}`, `{"a":"[1,\"2\"]"}`,
			`{"a":[1,2]}`},
		"object in a string": {`{"properties":{"a":{"type":"object"}}}`, `{"a":"{\"x\":9007199254740993}"}`,
			`{"a":{"x":9007199254740993}}`},
		"whole text":           {`{"properties":{"a":{"type":"integer"}}}`, `{"a":"1e2"}`, `{"a":100}`},
		"blanks round boolean": {`{"properties":{"a":{"type":"boolean"}}}`, `{"a":" True "}`, `{"a":true}`},
		"enum spelling": {`{"properties":{"a":{"enum":["Celsius","Kelvin"]}}}`, `{"a":" celsius"}`,
			`{"a":"Celsius"}`},
		"enum of numbers": {`{"properties":{"a":{"enum":[1,2]}}}`, `{"a":"2"}`, `{"a":2}`},
		"nested null": {`{"properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}}`,
			`{"a":{"b":null}}`, `{"a":{}}`},
		"one branch": {`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"boolean"}]}}}`, `{"a":"3"}`,
			`{"a":3}`},
		"branch by const": {`{"properties":{"a":{"oneOf":[{"type":"object","properties":{"k":{"const":"x"},` +
			`"n":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"y"},` +
			`"n":{"type":"boolean"}},"required":["k"]}]}}}`, `{"a":{"k":"x","n":"4"}}`, `{"a":{"k":"x","n":4}}`},
		"string stays a string": {`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"string"}]}}}`, `{"a":"1"}`,
			`{"a":"1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, f := p.Parse([]byte(c.schema), []byte(c.in), args.Options{Coercion: args.Extended})
			require.Nil(t, f)
			require.Equal(t, c.want, string(a.Raw()))
		})
	}
	_, f := p.Parse([]byte(`{"required":["a","b"],"properties":{"a":{"type":"string"},"b":{"enum":["x","y"]},`+
		`"c":{"type":"integer","maximum":5},"d":{"anyOf":[{"type":"string"},{"type":"number"},{"type":"null"}]}}}`),
		[]byte(`{"b":"q","c":9,"d":[]}`), args.Options{Coercion: args.Extended})
	require.ElementsMatch(t, []string{"a:missing", "b:not_allowed", "c:out_of_range", "d:type_mismatch"}, codes(f),
		"all faults at once")
	require.Contains(t, f.Error(), `must be one of "x", "y"; got string "q"`)
	require.Contains(t, f.Error(), "expected string, number or null, got an array of 0")
}

func TestBroken(t *testing.T) { // tolerate anything a model writes
	t.Parallel()
	var p args.Parser
	def := []byte(`{"properties":{"a":{"type":"integer"}}}`)
	for in, code := range map[string]string{
		`{"a":1`: "invalid_json", `[1]`: "type_mismatch", `3`: "type_mismatch", `"x"`: "invalid_json",
		`{"a":1}{"a":2}`:          "invalid_json",
		strings.Repeat("[", 5000): "invalid_json", `{"a":1e99999999}`: "invalid_json", `{"a":1e1000}`: "type_mismatch",
	} {
		_, f := p.Parse(def, []byte(in), args.Options{})
		require.NotNil(t, f, in)
		require.Equal(t, code, f.Issues[0].Code, Clip(in))
		require.Equal(t, messages.InvalidArguments, f.Fault().Code)
	}
	a, f := p.Parse(def, []byte(`{"a":1,"a":"2"}`), args.Options{})
	require.Nil(t, f)
	require.Equal(t, `{"a":2}`, string(a.Raw()), "of a key that comes twice the last counts, for every reader")
}

func TestCheckSchema(t *testing.T) { // bad schemas are refused with the place
	t.Parallel()
	var p args.Parser
	for schema, at := range map[string]string{
		`{"properties":{"a":{"minimum":"x"}}}`:                       "/properties/a/minimum",
		`{"properties":{"a":{"$ref":"#/$defs/none"}}}`:               "/$defs/none",
		`{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`:         "",
		`{"properties":{"a":{"$ref":"https://example.org/s.json"}}}`: "",
		`{"type":"string"}`: "/type",
		`[]`:                "",
		`{"properties":[]}`: "/properties",
		`{"$schema":"http://example.org/none","properties":{"a":{}}}`: "",
	} {
		got, err := p.CheckSchema([]byte(schema), true)
		require.Error(t, err, schema)
		require.Equal(t, at, got, "%s: %v", schema, err)
	}
	for _, schema := range []string{``, `{}`, `true`,
		`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"type":"string","pattern":"^(?!x)"}}}`,
		`{"properties":{"type":{"type":"string"},"a":{"type":"date"}}}`} {
		_, err := p.CheckSchema([]byte(schema), true)
		require.NoError(t, err, schema)
	}
	require.Len(t, p.SchemaWarnings([]byte(`{"properties":{"a":{"type":"date"},"b":{"pattern":"(?!x)"}}}`)), 2)
}

func Clip(s string) string { return s[:min(len(s), 40)] }

var fuzzSchemas = []string{
	`{"required":["a"],"properties":{"a":{"type":"string"},"b":{"type":"integer"},"c":{"type":"array",` +
		`"items":{"type":"number"}}}}`,
	`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"object","properties":{"x":{"$ref":"#"}}}]},` +
		`"b":{"enum":["x",1,null]},"c":{"type":["boolean","null"]}}}`,
	`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"a":{"$ref":"#/$defs/t"},` +
		`"b":{"type":"boolean"}},"additionalProperties":false}}}`,
	`{"oneOf":[{"required":["a"],"properties":{"a":{"type":"integer"}}},{"required":["b"],` +
		`"properties":{"b":{"type":"string"}}}]}`,
}

// FuzzParse: no panic, and what comes out validates (parsing it again changes nothing) or is a fault.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"1","b":" 2 ","c":["3"]}`, `{"a":{"x":{"a":"1"}},"b":"X","c":"TRUE"}`,
		`{"a":1e400,"b":-0.0}`, `"{\"a\":1}"`, `{"a":"[1]","a":null}`} {
		for i := range fuzzSchemas {
			f.Add(i, s, true)
			f.Add(i, s, false)
		}
	}
	var p args.Parser
	f.Fuzz(func(t *testing.T, schema int, in string, extended bool) {
		def := []byte(fuzzSchemas[uint(schema)%uint(len(fuzzSchemas))])
		o := args.Options{}
		if extended {
			o.Coercion = args.Extended
		}
		a, faults := p.Parse(def, []byte(in), o)
		if faults != nil {
			require.NotEmpty(t, faults.Issues)
			require.True(t, json.Valid(faults.JSON()))
			return
		}
		require.True(t, json.Valid(a.Raw()))
		b, faults := p.Parse(def, a.Raw(), o)
		require.Nil(t, faults)
		require.Equal(t, string(a.Canonical()), string(b.Canonical()))
	})
}

func BenchmarkParse(b *testing.B) {
	var p args.Parser
	def := []byte(`{"type":"object","required":["query","limit"],"properties":{"query":{"type":"string",` +
		`"minLength":1},"limit":{"type":"integer","minimum":1,"maximum":100},"exact":{"type":"boolean","default":false},` +
		`"unit":{"enum":["km","mi"]},"filters":{"type":"array","items":{"type":"object",` +
		`"properties":{"field":{"type":"string"},"value":{"anyOf":[{"type":"string"},{"type":"number"},` +
		`{"type":"null"}]}},"required":["field"]}}}}`)
	raw := []byte(`{"query":"hotels in Rome","limit":"10","unit":"km","filters":[{"field":"stars","value":4},` +
		`{"field":"city","value":"Rome"}]}`)
	for _, c := range []string{args.Documents, args.Extended} {
		b.Run(c, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, f := p.Parse(def, raw, args.Options{Coercion: c}); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}

func ExampleParser_Parse() {
	var p args.Parser
	schema := []byte(`{"properties":{"limit":{"type":"integer"}}}`)
	args, _ := p.Parse(schema, []byte(`{"limit":" 7 ","colour":"red"}`), args.Options{})
	fmt.Println(string(args.Raw()), args.Changes[0].Rule, args.Changes[1].Rule)
	// Output: {"limit":7} to_integer undeclared_dropped
}
