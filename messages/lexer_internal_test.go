package messages

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzInspect compares the validator with encoding/json: the same bytes are JSON, and white space is seen exactly where
// compacting takes some out.
func FuzzInspect(f *testing.F) {
	deep := strings.Repeat("[", maxNesting)
	for _, s := range []string{
		``, ` `, `null`, `nul`, `nulll`, `true `, "\tfalse\r\n", `-0`, `01`, `1.`, `.5`, `+1`, `1e5`, `1E+`, `-`,
		`1.5e-3x`, `""`, `"`,
		`"\u12aF"`, `"\u12g0"`, `"\x"`, `"\`, "\"\x1f\"", "\"\x7f\xff\"", `"0123456789\"abcdefg\\"`, `{}`, `{ }`,
		`{"a":1,}`, `{"a" :[1, 2]}`,
		`{"a":{"b":[{},[],"x y"]}}`, `{a:1}`, `{"a"}`, `{"a":}`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `1 2`, "\ufeff1",
		`"é "`, "\x00", "1\x00",
		deep + strings.Repeat("]", maxNesting), deep + "[" + strings.Repeat("]", maxNesting+1), deep,
		`"` + strings.Repeat("x", 100) + `"`, `"` + strings.Repeat("é", 5) + "\n" + `"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		valid, spaced := inspect(raw)
		require.Equal(t, json.Valid(raw), valid)
		if !valid {
			return
		}
		var want bytes.Buffer
		require.NoError(t, json.Compact(&want, raw))
		require.Equal(t, want.Len() != len(raw), spaced)
		require.Equal(t, want.String(), string(appendCompact(nil, raw)))
	})
}

func BenchmarkInspect(b *testing.B) {
	text := []byte(`{"messages":[` + strings.Repeat(`{"role":"user","content":"line\nthe quick brown fox jumps `+
		`over the \"lazy\" dog again"},`, 3000) + `{}]}`)
	dense := []byte(`{"data":[` + strings.Repeat(`{"id":12,"x":-1.5e3,"on":true,"k":["a","b"]},`, 6000) + `{}]}`)
	for name, raw := range map[string][]byte{"text": text, "dense": dense} {
		b.Run("own/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				inspect(raw)
			}
		})
		b.Run("encoding-json/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				json.Valid(raw)
			}
		})
	}
}
