package messages_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func TestWireKeepsEveryByteOfMeaning(t *testing.T) {
	t.Parallel()
	body := `{"model":"m","temperature":0,"x":{"big":9007199254740993,"s":"a\u00e9 b"},"stop":"END","d":1,"d":2,` +
		`"z":null}`
	c := messages.NewCall(messages.Model, "default", []byte(" "+strings.ReplaceAll(body, ",\"", ", \n\"")))
	c.Keep("fallback")
	require.Equal(t, body, string(c.Request()))
	c.SetRequest(rawjson.SetFieldString(c.Request(), "model", "m2"))
	wire, err := c.Marshal()
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(wire), "\n"))
	d, err := messages.Unmarshal(wire)
	require.NoError(t, err)
	require.Equal(t, body, string(d.Kept("fallback")))
	require.Equal(t, strings.Replace(body, `"m"`, `"m2"`, 1), string(d.Request()))
	require.True(t, d.Restore("fallback"))
	again, err := d.Marshal()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(again), "\n"), "an unchanged request is one line however many keep it")
}

func TestTextBodies(t *testing.T) {
	t.Parallel()
	c := messages.NewCall(messages.Tool, "default", []byte("not json\nat all"))
	text, ok := c.RequestText()
	require.True(t, ok)
	require.Equal(t, "not json\nat all", text)
	wire, err := c.Marshal()
	require.NoError(t, err)
	d, err := messages.Unmarshal(wire)
	require.NoError(t, err)
	text, ok = d.RequestText()
	require.True(t, ok)
	require.Equal(t, "not json\nat all", text)
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a", "a.b", "=", "=h", "a b", "ä", strings.Repeat("x", 70), "*", ">"} {
		f.Add(s, s+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ta, tb := messages.Token(a), messages.Token(b)
		require.Equal(t, a == b, ta == tb, "%q and %q", a, b)
		require.NotContains(t, ta, ".")
		require.LessOrEqual(t, len(ta), 64)
		require.NotEmpty(t, ta)
		if back, ok := messages.Untoken(ta); ok {
			require.Equal(t, a, back)
		} else {
			require.True(t, strings.HasPrefix(ta, "=h"))
		}
	})
}

func FuzzUnmarshal(f *testing.F) {
	c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m"}`))
	wire, _ := c.Marshal()
	f.Add(wire)
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"v":1,"id":"x","kind":"model","tenant":"t","accepted":"2026-01-01T00:00:00Z",` +
		`"deadline":"2026-01-01T00:00:00Z","slip":{"stops":[],"at":0},"bodies":{"request":1},"lines":[{"size":2}]}` +
		"\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := messages.Unmarshal(data)
		if err != nil {
			return
		}
		wire, err := c.Marshal()
		require.NoError(t, err)
		d, err := messages.Unmarshal(wire)
		require.NoError(t, err)
		require.Equal(t, c.Request(), d.Request())
	})
}
