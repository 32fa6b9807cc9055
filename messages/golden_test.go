package messages_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

var update = flag.Bool("update", false, "write the golden files again")

// fixed returns a call whose every field is set and always the same.
func fixed(body string) *messages.Call {
	c := messages.NewCall(messages.Model, "acme", []byte(body))
	c.ID = "01890a5d-ac96-774b-bcce-b302099a8057"
	c.Accepted = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	c.Deadline = c.Accepted.Add(10 * time.Minute)
	c.Generation = 3
	c.Slip = messages.Slip{At: -1, Stops: []messages.Stop{
		{Name: "audit", Order: 0, Before: true, After: true, Mandatory: true},
		{Name: "model-fallback", Order: 10, After: true, Keep: true},
		{Name: "model-retry", Order: 95, After: true, Keep: true, Skippable: true},
	}}
	return c
}

// golden are calls at typical places. What a build writes here, every later build of the same wire version must read.
func golden() map[string]*messages.Call {
	fresh := fixed(`{"model":"m1","temperature":0,"seed":9007199254740993,"messages":[{"role":"user",` +
		`"content":"caf\u00e9 <b>"}]}`)

	// two kept bodies: as it was at the fallback, and as it was at the retry
	kept := fixed(`{"model":"m1","messages":[]}`)
	kept.Role, kept.Session, kept.Run, kept.User, kept.Agent = "caller", "s1", "r1", "u1", "helper"
	kept.RequestID, kept.IdempotencyKey, kept.Fingerprint = "req-1", "key-1", "ab12"
	kept.Parent, kept.Skip, kept.Stream, kept.Cache, kept.Explain = "01890a5d-0000-7000-8000-000000000000",
		[]string{"context-editing"}, true, "refresh", true
	kept.Return = messages.Return{Inbox: "_INBOX.a.1", Caller: "_INBOX.b.2", Record: true}
	kept.Trace = messages.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", State: "a=1"}
	kept.Keep("model-fallback")
	kept.SetRequest(rawjson.SetFieldString(kept.Request(), "model", "m2"))
	kept.Keep("model-retry")
	kept.SetRequest(rawjson.SetFieldString(kept.Request(), "user", "u1"))
	kept.Slip.At, kept.Slip.Hops, kept.Slip.Tries = 3, 5, 1
	kept.Slip.Path = []string{"audit.beforeModel", "model"}
	kept.Slip.Frames = []messages.Frame{
		{Stop: 0, Attempt: 1, State: []byte(`{"began":1}`), Nanos: 1200},
		{Stop: 1, Attempt: 2}, {Stop: 2, Attempt: 1, Err: "broke"}}
	kept.Slip.Stops[2].Tally = messages.Tally{Count: 1, Nanos: 900, Errors: 1, Err: "broke"}
	kept.Note(messages.NoteIsFallback, true)

	shared := fixed(`{"model":"m1"}`) // an unchanged request is one line however many keep it
	shared.Keep("model-fallback")
	shared.Keep("model-retry")
	shared.SetReply([]byte(`{"choices":[]}`))

	fault := fixed("not json\nat all")
	f := messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin).At("model")
	f.Status, f.Type, f.OpenAICode, f.RetryAfter, f.Last = 429, "rate_limit_error", "rate_limit_exceeded",
		2*time.Second, messages.ProviderError
	f.Headers, f.Unsent = map[string]string{"x-ratelimit-remaining": "0"}, true
	fault.Fail(f)

	claim := fixed(`{"model":"m1","big":"0123456789"}`)
	_ = claim.Spill(10, func([]byte) (string, error) { return "sha256-abc", nil })

	wire := fixed(`{"model":"m1","max_tokens":9,"messages":[]}`)
	wire.Wire = messages.MessagesWire
	return map[string]*messages.Call{"wire-messages": wire, "fresh": fresh, "two-kept": kept,
		"one-line-shared": shared, "fault-text": fault, "claim-check": claim}
}

func TestGoldenWire(t *testing.T) {
	t.Parallel()
	for name, c := range golden() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", name+".wire")
			wire, err := c.Marshal()
			require.NoError(t, err)
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(path, wire, 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err, "run: go test ./messages -update")
			require.Equal(t, string(want), string(wire), "the wire form changed; a change that old builds "+
				"cannot read needs another WireVersion")
			back, err := messages.Unmarshal(want)
			require.NoError(t, err)
			require.Equal(t, c.Sizes(), back.Sizes())
			again, err := back.Marshal()
			require.NoError(t, err)
			require.Equal(t, string(want), string(again), "reading and writing changes nothing")
		})
	}
	two, err := messages.Unmarshal(read(t, "two-kept"))
	require.NoError(t, err)
	require.Equal(t, `{"model":"m1","messages":[]}`, string(two.Kept("model-fallback")))
	require.Equal(t, `{"model":"m2","messages":[]}`, string(two.Kept("model-retry")))
	require.Equal(t, `{"model":"m2","messages":[],"user":"u1"}`, string(two.Request()))
	require.Equal(t, 3, bytes.Count(read(t, "two-kept"), []byte("\n")), "line 1 and three bodies")
	require.Equal(t, 2, bytes.Count(read(t, "one-line-shared"), []byte("\n")), "one request, one reply")
}

func read(t *testing.T, name string) []byte {
	b, err := os.ReadFile(filepath.Join("testdata", name+".wire"))
	require.NoError(t, err)
	return b
}

func TestWireRefuses(t *testing.T) {
	t.Parallel()
	good := string(read(t, "fresh"))
	edit := func(from, to string) string {
		require.Contains(t, good, from)
		return strings.Replace(good, from, to, 1)
	}
	for name, row := range map[string]struct{ wire, says string }{
		"another version":     {edit(`"v":1`, `"v":2`), "version 2"},
		"no version":          {edit(`"v":1,`, ``), "version none"},
		"version as text":     {edit(`"v":1`, `"v":"1"`), "version"},
		"an unknown field":    {edit(`"v":1`, `"v":1,"extra":1`), `unknown field "extra"`},
		"a field twice":       {edit(`"v":1`, `"v":1,"tenant":"other"`), `"tenant" twice`},
		"a field in capitals": {edit(`"tenant"`, `"Tenant"`), "Tenant"},
		"an unknown kind":     {edit(`"kind":"model"`, `"kind":"other"`), "known: model, tool, agent"},
		"no id":               {edit(`"id":"01890a5d-ac96-774b-bcce-b302099a8057"`, `"id":""`), "id"},
		"no tenant":           {edit(`"tenant":"acme"`, `"tenant":""`), "tenant"},
		"a missing line":      {good[:strings.IndexByte(good, '\n')], "line 2"},
		"a short line":        {good[:len(good)-1], "bytes"},
		"a line too many":     {good + "\n{}", "after the last line"},
		"a body of no line":   {edit(`"bodies":{"request":1}`, `"bodies":{"request":2}`), "line 2 of 1"},
		"a slip out of range": {edit(`"at":-1`, `"at":9`), "9 of 3"},
		"no JSON":             {"garbage", "no JSON"},
		"nothing":             {"", "no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := messages.Unmarshal([]byte(row.wire))
			require.ErrorContains(t, err, row.says)
		})
	}
	var f *messages.Fault
	_, err := messages.Unmarshal([]byte(edit(`"v":1`, `"v":2`)))
	require.ErrorAs(t, err, &f)
	require.Equal(t, messages.UnsupportedVersion, f.Code)
}
