package rawjson_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

func canonical(t testing.TB, s string) string {
	t.Helper()
	out, err := rawjson.Canonical([]byte(s))
	require.NoError(t, err)
	return string(out)
}

func TestCanonicalEqual(t *testing.T) {
	t.Parallel()
	for name, same := range map[string][]string{
		"the order of keys does not matter (CA-2)": {`{"a":1,"b":2}`, `{"b":2,"a":1}`, "{ \"b\" : 2,\n\"a\":1 }"},
		"nor does it in nested objects (CA-3)": {`{"x":{"p":[1,{"m":1,"n":2}],"q":null}}`,
			`{"x":{"q":null,"p":[1,{"n":2,"m":1}]}}`},
		"one number":         {`1`, `1.0`, `1e0`, `10E-1`, `0.1e+1`, `1.000`},
		"zero":               {`0`, `0.0`, `0e5`},
		"hundred":            {`100`, `1e2`, `1.00E2`},
		"negative":           {`-1.50`, `-15e-1`},
		"escapes":            {`"aé😀/\n"`, `"\u0061\u00e9\ud83d\ude00\/\u000a"`, `"\u0061\u00E9\uD83D\uDE00/\n"`},
		"escaped key":        {`{"a":1,"b":2}`, `{"\u0062":2,"\u0061":1}`},
		"quote and slash":    {`"\"\\"`, `"\u0022\u005c"`},
		"literals in a list": {`[true,false,null,"",{},[]]`, ` [ true , false , null , "" , { } , [ ] ] `},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := canonical(t, same[0])
			require.True(t, json.Valid([]byte(want)))
			for _, s := range same[1:] {
				require.Equal(t, want, canonical(t, s), s)
			}
			require.Equal(t, want, canonical(t, want), "idempotent")
		})
	}
}

func TestCanonicalDistinct(t *testing.T) {
	t.Parallel()
	deep := func(leaf string) string { return strings.Repeat("[", 2000) + leaf + strings.Repeat("]", 2000) }
	for _, two := range [][2]string{
		{`1`, `"1"`}, {`9007199254740993`, `9007199254740992`}, {`0.1`, `0.10000000000000001`}, {`1`, `-1`},
		{`0`, `-0`},
		{`"\ud800"`, `"\ufffd"`}, {`"\ud800"`, `"\udbff"`}, {`"\\ud800"`, `"\ud800"`}, {`{"a":1,"a":2}`, `{"a":2}`},
		{`{"a":1,"a":2}`, `{"a":2,"a":1}`}, {`{}`, `[]`}, {`null`, `false`}, {`""`, `null`}, {`{"a":null}`, `{}`},
		{`[1,2]`, `[2,1]`}, {`1e400`, `1e401`}, {`1e99999999999999999999`, `1e99999999999999999998`},
		{`["a","b"]`, `["a,b"]`}, {deep(`1`), deep(`2`)}, {"\"\xff\"", `"\ufffd"`},
	} {
		require.NotEqual(t, canonical(t, two[0]), canonical(t, two[1]), "%.40s %.40s", two[0], two[1])
	}
	for _, bad := range []string{``, `{`, `{"a"}`, `1 2`, `nul`, `"`, `01`} {
		_, err := rawjson.Canonical([]byte(bad))
		require.ErrorIs(t, err, rawjson.ErrNotJSON, bad)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"b":[1.50e3,-0,"\ud83d\ude00\ud800\u0000"],"a":{}}`, `1e-7`, `"\\\"\/"`,
		`[[],{},""]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := rawjson.Canonical(in)
		if err != nil {
			return
		}
		again, err := rawjson.Canonical(out)
		require.NoError(t, err, "%q gave %q", in, out)
		require.Equal(t, string(out), string(again))
		var a, b any
		require.NoError(t, unmarshalExact(in, &a))
		require.NoError(t, unmarshalExact(out, &b))
		requireSame(t, a, b)
	})
}

func unmarshalExact(raw []byte, v any) error {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	return dec.Decode(v)
}

func requireSame(t *testing.T, a, b any) {
	t.Helper()
	switch x := a.(type) {
	case map[string]any:
		y := b.(map[string]any)
		require.Len(t, y, len(x))
		for k := range x {
			requireSame(t, x[k], y[k])
		}
	case []any:
		y := b.([]any)
		require.Len(t, y, len(x))
		for i := range x {
			requireSame(t, x[i], y[i])
		}
	case json.Number:
		if len(x) > 30 || strings.ContainsAny(string(x), "eE") && len(x) > 6 {
			return // big.Rat would need the memory of the number written out
		}
		p, ok1 := new(big.Rat).SetString(string(x))
		q, ok2 := new(big.Rat).SetString(string(b.(json.Number)))
		require.True(t, ok1 && ok2 && p.Cmp(q) == 0, "%s %s", x, b)
	default:
		require.Equal(t, a, b)
	}
}

func BenchmarkCanonical(b *testing.B) {
	msg := `{"role":"user","content":"` + strings.Repeat("hello world ", 40) + `","n":12.50}`
	in := []byte(`{"model":"m","messages":[` + strings.Repeat(msg+",", 39) + msg + `],"temperature":0.20}`)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, err := rawjson.Canonical(in); err != nil {
			b.Fatal(err)
		}
	}
}
