package args_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// TestSchemaBombs: a schema or arguments made to cost seconds or gigabytes are refused, and say why.
func TestSchemaBombs(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + `"x"` + strings.Repeat("}", n) }
	var laughs strings.Builder
	laughs.WriteString(`{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`)
	for i := range 40 {
		fmt.Fprintf(&laughs, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	laughs.WriteString(`"d40":{"type":"string"}}}`)
	twice := func(word string) string {
		one := `{"type":"object","properties":{"a":{"$ref":"#/$defs/n"},"k":{"const":%d}}}`
		return fmt.Sprintf(`{"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{%q:[`+one+`,`+one+`]}}}`, word, 1, 2)
	}
	for name, c := range map[string]struct{ schema, in, says string }{
		"anyOf into itself": {twice("anyOf"), deep(60), "would take more than"},
		"oneOf into itself": {twice("oneOf"), deep(60), "would take more than"},
		"allOf into itself": {twice("allOf"), deep(60), "would take more than"},
		"hidden in a text":  {twice("anyOf"), `{"a":` + string(rawjson.Encode(deep(60))) + `}`, "'a': "},
		"a ring": {`{"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"anyOf":[{"$ref":"#/$defs/n"},` +
			`{"$ref":"#/$defs/n"}]}}}`, `{"a":1}`, "without end"},
		"a billion laughs": {laughs.String(), `{"a":1}`, "unfolds to more than"},
		"deep":             {`{"properties":{"a":{}}}`, deep(65), "65 levels deep"},
		"many": {`{"properties":{"a":{}}}`, `{"a":[` + strings.Repeat("1,", 100_000) + `1]}`,
			"more than 100000 values"},
		"a long pattern": {`{"properties":{"a":{"pattern":"^(x{0,900}y?){0,1}$"}}}`,
			`{"a":"` + strings.Repeat("x", 1_000_000) + `"}`, "must match the pattern"},
		"a far exponent":     {`{"properties":{"a":{"type":"integer"}}}`, `{"a":1e999999999}`, "too many digits"},
		"a far exponent too": {`{"properties":{"a":{"type":"integer"}}}`, `{"a":"1e999999999"}`, "expected integer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []string{args.Documents, args.Extended, args.Off} {
				var p args.Parser
				begin := time.Now()
				_, f := p.Parse([]byte(c.schema), []byte(c.in), args.Options{Coercion: mode})
				require.NotNil(t, f, mode)
				require.Contains(t, f.Error(), c.says, mode)
				require.Less(t, len(f.Error()), 20_000)
				require.Less(t, time.Since(begin), time.Minute, "it would be years") // a bound against years, not a measurement
			}
		})
	}
	t.Run("what is large and harmless passes", func(t *testing.T) {
		t.Parallel()
		var p args.Parser
		in := `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"k":"1","v":null},`, 33_000), ",") + `]}`
		a, f := p.Parse([]byte(`{"properties":{"a":{"type":"array","items":{"type":"object",`+
			`"properties":{"k":{"type":"integer"},"v":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}}}`), []byte(in),
			args.Options{})
		require.Nil(t, f)
		require.Len(t, a.Changes, 33_000)
		tree := `{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},` +
			`"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`
		a, f = p.Parse([]byte(tree), []byte(strings.Repeat(`{"v":"7","next":`, 60)+`null`+strings.Repeat(`}`, 60)),
			args.Options{})
		require.Nil(t, f)
		require.Len(t, a.Changes, 60, "a list of its own kind, to its end")
		for _, schema := range []string{twice("anyOf"), tree} {
			_, err := p.CheckSchema([]byte(schema), true)
			require.NoError(t, err, "it can be used with small arguments")
		}
		at, err := p.CheckSchema([]byte(laughs.String()), true)
		require.ErrorContains(t, err, "unfolds")
		require.Regexp(t, `^/\$defs/d\d+$`, at)
	})
}

// TestWhatModelsSend: schemas as the usual generators write them, arguments as models write them.
func TestWhatModelsSend(t *testing.T) {
	t.Parallel()
	pydantic := `{"$defs":{"Item":{"properties":{"sku":{"type":"string"},"qty":{"default":1,"type":"integer"},` +
		`"note":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}},"required":["sku"],"title":"Item",` +
		`"type":"object"}},"properties":{"items":{"items":{"$ref":"#/$defs/Item"},"type":"array"},` +
		`"limit":{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null},"mode":{"enum":["fast","slow"]}},` +
		`"required":["items"],"title":"A","type":"object"}`
	draft7 := `{"$schema":"http://json-schema.org/draft-07/schema#","$id":"https://example.org/s","type":"object",` +
		`"definitions":{"p":{"type":"number"}},"properties":{"p":{"$ref":"#/definitions/p"},"pair":{"type":"array",` +
		`"items":[{"type":"integer"},{"type":"boolean"}],"additionalItems":false},"t":{"type":["integer","null"]}},` +
		`"additionalProperties":false}`
	// out: "!text" is a fault; extended empty: as out
	for name, c := range map[string]struct{ schema, in, out, extended string }{
		"X or null of Python": {pydantic, `{"items":[{"sku":5,"qty":"2","note":null}],"limit":"7"}`,
			`{"items":[{"sku":"5","qty":2,"note":null}],"limit":7}`, ``},
		"null default is none":   {pydantic, `{"items":[]}`, `{"items":[]}`, ``},
		"null stays where named": {pydantic, `{"items":[],"limit":null}`, `{"items":[],"limit":null}`, ``},
		"nested null, then default": {pydantic, `{"items":[{"sku":"a","qty":null}]}`,
			`!'items/0/qty': expected integer, got null`, `{"items":[{"sku":"a","qty":1}]}`},
		"array in a text": {pydantic, `{"items":"[{\"sku\":1}]"}`, `!'items': expected array, got string`,
			`{"items":[{"sku":"1"}]}`},
		"enum without type": {pydantic, `{"items":[],"mode":"FAST"}`,
			`!must be one of "fast", "slow"; got string "FAST"`, `{"items":[],"mode":"fast"}`},
		"draft 7 tuple": {draft7, `{"p":"1.50","pair":["3","TRUE"],"t":"9007199254740993"}`,
			`{"p":1.5,"pair":[3,true],"t":9007199254740993}`, ``},
		"draft 7 beyond the tuple": {draft7, `{"pair":[3,true,1]}`, `!'pair'`, ``},
		"undeclared dropped":       {draft7, `{"p":1,"__proto__":{"x":1},"constructor":2}`, `{"p":1}`, ``},
		"2020 tuple": {`{"properties":{"a":{"prefixItems":[{"type":"integer"}],"items":{"type":"string"}}}}`,
			`{"a":["1",2,true]}`, `{"a":[1,"2","true"]}`, ``},
		"names of JavaScript": {`{"properties":{"__proto__":{"type":"integer"},"constructor":{"type":"boolean"},` +
			`"toString":{"type":"string"}}}`, `{"toString":1,"__proto__":"2","constructor":"true"}`,
			`{"__proto__":2,"constructor":true,"toString":"1"}`, ``},
		"odd names": {`{"properties":{"":{"type":"integer"},"a/b":{"type":"integer","default":4},` +
			`"c~d":{"type":"integer"},"e%20f":{"type":"integer","default":5},"日本 #?":{"type":"integer","default":6}}}`,
			`{"":"1","c~d":"3"}`, `{"":1,"a/b":4,"c~d":3,"e%20f":5,"日本 #?":6}`, ``},
		"values by schema": {`{"properties":{},"additionalProperties":{"type":"object",` +
			`"additionalProperties":{"type":"integer"}}}`, `{"x":{"y":"1"}}`, `{"x":{"y":1}}`, ``},
		"names by pattern": {`{"properties":{"a":{"type":"object","patternProperties":{"^n_":{"type":"integer"},` +
			`"^b_":{"type":"boolean"}},"additionalProperties":false}}}`, `{"a":{"n_x":"1","b_y":"true","z":1}}`,
			`{"a":{"n_x":1,"b_y":true}}`, ``},
		"const": {`{"properties":{"k":{"const":"a"},"n":{"const":3}}}`, `{"k":"a","n":3.0}`,
			`{"k":"a","n":3.0}`, ``},
		"list of types": {`{"properties":{"a":{"type":["string","array"],"items":{"type":"integer"}},` +
			`"b":{"type":["boolean","null"]},"c":{"type":["number","string"]}}}`, `{"a":["1"],"b":"false","c":"1"}`,
			`{"a":[1],"b":false,"c":"1"}`, ``},
		"untyped takes anything": {`{"properties":{"a":{},"b":true,"c":{"description":"x"}}}`,
			`{"a":null,"b":[1,"2"],"c":null}`, `{"a":null,"b":[1,"2"],"c":null}`, ``},
		"numbers are exact": {`{"properties":{"a":{"type":"integer"},"b":{"type":"number"},"c":{"type":"array",` +
			`"items":{"type":"number"}},"d":{"type":"string"}}}`,
			`{"a":9007199254740993,"b":0.1000000000000000055511151231257827,"c":[1E+2,-0,1e-400],"d":12345678901234567890.10}`,
			`{"a":9007199254740993,"b":0.1000000000000000055511151231257827,"c":[1E+2,-0,1e-400],` +
				`"d":"12345678901234567890.10"}`, ``},
		"X or null is X": {`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]},` +
			`"b":{"oneOf":[{"type":"null"},{"type":"integer","format":"int32"}]}}}`, `{"a":3.0,"b":7}`, `{"a":3,"b":7}`, ``},
		"X or null in its range": {`{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}`,
			`{"a":9223372036854775808}`,
			`!'a': expected integer or null, got number 9223372036854775808 (out of 64-bit integer range)`, ``},
		"formats of integers": {`{"properties":{"a":{"type":"integer","format":"int32"},"b":{"type":"integer",` +
			`"format":"int64"},"c":{"type":"integer","format":"uint64"}}}`, `{"a":2147483648,"b":9223372036854775808,"c":-1}`,
			`!out of int range`, ``},
		"largest of each": {`{"properties":{"a":{"type":"integer","format":"int32"},"b":{"type":"integer"},` +
			`"c":{"type":"integer","format":"uint64"}}}`,
			`{"a":"-2147483648","b":"9223372036854775807","c":"18446744073709551615"}`,
			`{"a":-2147483648,"b":9223372036854775807,"c":18446744073709551615}`, ``},
		"half a surrogate pair": {`{"required":["a"],"properties":{"a":{"type":"string","minLength":2,"maxLength":2}}}`,
			`{"a":"\ud800\u0041"}`, `{"a":"\ud800\u0041"}`, ``},
		"a pair of surrogates": {`{"properties":{"a":{"type":"string","maxLength":1}}}`, `{"a":"\ud83d\ude00"}`,
			`{"a":"\ud83d\ude00"}`, ``},
		"escapes stay as they are": {`{"properties":{"a":{"type":"string"}}}`, `{"a":"\u00e9\/\u2028é"}`,
			`{"a":"\u00e9\/\u2028é"}`, ``},
		"name in escapes": {`{"properties":{"ab":{"type":"integer"}}}`, `{"\u0061b":"1"}`, `{"ab":1}`, ``},
		"a name twice": {`{"properties":{"o":{"type":"object","properties":{"n":{"type":"integer"}}}}}`,
			`{"o":{"n":"1","n":"2"}}`, `{"o":{"n":2}}`, ``},
		"byte order mark":           {`{"properties":{"a":{"type":"integer"}}}`, "\ufeff{\"a\":\"1\"}", `{"a":1}`, ``},
		"byte order mark in a text": {`{"properties":{"a":{"type":"integer"}}}`, `"\ufeff{\"a\":\"1\"}"`, `{"a":1}`, ``},
		"quoted twice":              {`{"properties":{"a":{"type":"integer"}}}`, `"{\"a\":\"1\"}"`, `{"a":1}`, ``},
		"invalid UTF-8": {`{"properties":{"a":{"type":"string"}}}`, "{\"a\":\"x\xff\"}", "{\"a\":\"x\ufffd\"}",
			``},
		"words of others": {`{"properties":{"region":{"type":"string","x-mcp-header":"Region",` +
			`"examples":[{"type":"date"}],"default":"eu"}}}`, `{}`, `{"region":"eu"}`, ``},
		"minLength 0 in a union": {`{"required":["a"],"properties":{"a":{"type":"string","minLength":0}}}`, `{"a":" "}`,
			`{"a":" "}`, ``},
		"the schema behind a ref": {`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","required":["n"],` +
			`"properties":{"n":{"type":"integer"}}}}}`, `{"n":"4","x":1}`, `{"n":4}`, ``},
		"allOf at the top": {`{"allOf":[{"properties":{"a":{"type":"integer"}}},` +
			`{"properties":{"b":{"type":"boolean"}},"required":["b"]}]}`, `{"a":"1","b":"true"}`, `{"a":1,"b":true}`, ``},
		"an array as the arguments": {`{"properties":{"a":{"type":"integer"}}}`, `[{"a":1}]`,
			`!must be one JSON object, got an array of 1`, ``},
		"a number as the arguments": {`{"properties":{"a":{"type":"integer"}}}`, `7`,
			`!must be one JSON object, got number 7`, ``},
		"two readings, none is taken": {`{"properties":{"a":{"oneOf":[{"type":"integer"},{"type":"boolean"}]}}}`, `{"a":"x"}`,
			`!'a': expected integer or boolean, got string "x"`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for mode, want := range map[string]string{args.Documents: c.out, args.Extended: c.extended} {
				var p args.Parser
				if want == "" {
					want = c.out
				}
				_, err := p.CheckSchema([]byte(c.schema), true)
				require.NoError(t, err)
				a, f := p.Parse([]byte(c.schema), []byte(c.in), args.Options{Coercion: mode})
				if text, bad := strings.CutPrefix(want, "!"); bad {
					require.NotNil(t, f, mode)
					require.Contains(t, f.Error(), text, mode)
					continue
				}
				require.Nil(t, f, mode)
				require.Equal(t, want, string(a.Raw()), mode)
			}
		})
	}
}

// TestEveryFaultOfAPlace: several things wrong with one value are said at once, each once.
func TestEveryFaultOfAPlace(t *testing.T) {
	t.Parallel()
	var p args.Parser
	_, f := p.Parse([]byte(`{"properties":{"a":{"allOf":[{"minLength":5},{"minLength":5}],"pattern":"^x"},`+
		`"b":{"type":"array","minItems":2,"items":{"type":"integer"}},"c":{"type":"integer","minimum":5,"multipleOf":2}}}`),
		[]byte(`{"a":"yyy","b":["q"],"c":3}`), args.Options{Tool: "t"})
	require.NotNil(t, f)
	require.Equal(t, strings.Join([]string{
		"Invalid arguments for tool 't':", "- 'a': must match the pattern ^x; got string \"yyy\"",
		"- 'a': needs at least 5 characters, has 3",
		"- 'b': needs at least 2 items, has 1", "- 'b/0': expected integer, got string \"q\"",
		"- 'c': must be a multiple of 2, got number 3", "- 'c': must be at least 5, got number 3",
	}, "\n"), f.Error())
}

// TestParseKeepsTheRules holds the parser against a validator of its own on random schemas and values: what the schema
// takes is not touched, what comes out fits, what was changed is recorded, and a second pass changes nothing.
func TestParseKeepsTheRules(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 11))
	good, changed, refused := 0, 0, 0
	for i := range 800 {
		schema := `{"type":"object","properties":{"a":` + randomSchema(rnd, 3) + `,"b":` + randomSchema(rnd, 2) + `}}`
		in := `{"a":` + randomValue(rnd, 3) + `,"b":` + randomValue(rnd, 2) + `}`
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
		require.NoError(t, err)
		c := jsonschema.NewCompiler()
		require.NoError(t, c.AddResource("mem:///s", doc))
		judge := c.MustCompile("mem:///s")
		fits := func(raw []byte) bool {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
			require.NoError(t, err)
			return judge.Validate(v) == nil
		}
		for _, mode := range []string{args.Documents, args.Extended} {
			var p args.Parser
			o := args.Options{Coercion: mode}
			a, f := p.Parse([]byte(schema), []byte(in), o)
			at := fmt.Sprintf("%d %s\nschema %s\nin %s", i, mode, schema, in)
			if fits([]byte(in)) {
				require.Nil(t, f, at)
				require.Equal(t, in, string(a.Raw()), at)
				require.Empty(t, a.Changes, at)
				good++
				continue
			}
			if f != nil {
				require.NotEmpty(t, f.Issues, at)
				refused++
				continue
			}
			require.True(t, fits(a.Raw()), "%s\nout %s", at, a.Raw())
			require.NotEmpty(t, a.Changes, at)
			again, f := p.Parse([]byte(schema), a.Raw(), o)
			require.Nil(t, f, at)
			require.Equal(t, string(a.Raw()), string(again.Raw()), at)
			require.Empty(t, again.Changes, at)
			changed++
		}
	}
	require.Greater(t, good, 40)
	require.Greater(t, changed, 20)
	require.Greater(t, refused, 40)
}

func randomSchema(r *rand.Rand, depth int) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	leaf := func() string {
		return pick(`{"type":"string"}`, `{"type":"integer"}`, `{"type":"number"}`, `{"type":"boolean"}`, `{"type":"array"}`,
			`{"type":"object"}`, `{}`,
			`{"type":["integer","null"]}`, `{"type":["string","boolean"]}`, `{"enum":["x",1,true,null]}`, `{"const":3}`,
			`{"type":"integer","minimum":2}`, `{"type":"string","minLength":2}`)
	}
	if depth == 0 {
		return leaf()
	}
	sub := func() string { return randomSchema(r, depth-1) }
	switch r.IntN(8) {
	case 0:
		return `{"type":"array","items":` + sub() + `}`
	case 1:
		return `{"type":"object","properties":{"p":` + sub() + `,"q":` + sub() + `}}`
	case 2:
		return `{"anyOf":[` + sub() + `,{"type":"null"}]}`
	case 3:
		return `{"anyOf":[` + sub() + `,` + sub() + `]}`
	case 4:
		return `{"oneOf":[` + sub() + `,` + sub() + `]}`
	case 5:
		return `{"type":"object","additionalProperties":` + sub() + `}`
	case 6:
		return `{"allOf":[` + sub() + `]}`
	}
	return leaf()
}

func randomValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(12); {
	case n == 0 && depth > 0:
		return `[` + randomValue(r, depth-1) + `,` + randomValue(r, depth-1) + `]`
	case n <= 2 && depth > 0:
		return `{"p":` + randomValue(r, depth-1) + `,"q":` + randomValue(r, depth-1) + `}`
	case n == 3 && depth > 0:
		text, _ := json.Marshal(randomValue(r, depth-1))
		return string(text)
	}
	list := []string{`"x"`, `"1"`, `" 3 "`, `"TRUE"`, `true`, `1`, `3`, `3.5`, `9007199254740993`, `null`, `[]`, `{}`,
		`"[1]"`, `"X"`, `""`}
	return list[r.IntN(len(list))]
}
