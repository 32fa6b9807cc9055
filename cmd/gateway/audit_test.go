package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	raw, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return r.StatusCode, string(raw)
}

// Who takes the audit stream away is found out within seconds, and what could not be written is written when the stream
// is there again (BU-16).
func TestALostAuditStreamFailsReadinessAndKeepsRecords(t *testing.T) {
	t.Parallel()
	base, url := command(t)
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "SHALLOT_AUDIT")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	require.NoError(t, js.DeleteStream(t.Context(), "SHALLOT_AUDIT"))
	for range 3 {
		status, text, _ := post(t, base+"/v1/chat/completions", hello)
		require.Equal(t, 200, status, "open with alarm: %s", text)
	}
	require.Eventually(t, func() bool {
		status, text := get(t, base+"/readyz")
		reason := gjson.Get(text, `checks.#(name=="audit").reason`).Str
		return status == 503 && gjson.Get(text, `checks.#(name=="audit").ok`).Raw == "false" && reason != ""
	}, 30*time.Second, 50*time.Millisecond)
	_, err = js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		status, _ := get(t, base+"/readyz")
		s, err := js.Stream(t.Context(), "SHALLOT_AUDIT")
		return status == 200 && err == nil && s.CachedInfo().State.Msgs >= 6 // the end of each call, and what its model did
	}, 30*time.Second, 50*time.Millisecond)
	_, text := get(t, base+"/readyz")
	require.Contains(t, gjson.Get(text, `checks.#(name=="audit").reason`).Str, "0 are lost")
}

// Whoever changes how the installation works leaves a record, also when the audit is what they switch off and also when
// they are refused (SE-7).
func TestControlActionsAreOnRecord(t *testing.T) {
	t.Parallel()
	keys := keysFile(t, map[string]string{"op": `,"role":"operator"`})
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
version: 1
http: {keys-file: "`+keys+`"}
agent: {interceptor: {approval: {policies: [{name: all, tool: echo}]}}}
`), 0o600))
	base, url := command(t, "--config", file)
	nc, err := nats.Connect(url, nats.UserInfo("op", "key-op"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	auth := []string{"Authorization", "Bearer key-op"}
	do := func(path, body string) string {
		_, text, _ := post(t, base+path, body, auth...)
		return text
	}
	held := func() string { return gjson.Get(do("/v1/tools/echo/call", `{"message":"x"}`), "call").Str }
	req := func(subject, body string) {
		_, err := nc.Request(subject, []byte(body), 30*time.Second)
		require.NoError(t, err)
	}
	first, second := held(), held()
	require.NotEmpty(t, first)
	do("/api/debug/interceptor/audit/disable", `{}`)
	do("/api/debug/interceptor/audit/disable?confirm=audit", ``)
	req("shallot.v1.control.disable", "logging")
	do("/v1/approvals/"+first, `{"decision":"approve"}`)
	req("shallot.v1.approval.answer", `{"call":"`+second+`","decision":"reject"}`)
	do("/v1/approvals/"+second, `{"decision":"approve"}`)
	do("/v1/tools", `{"name":"mine","description":"d","executor":"go:echo","input-schema":{"type":"object"}}`)
	req("shallot.v1.control.enable", "logging")

	type row struct{ action, what, by, from, outcome string }
	want := []row{
		{"switch-off", "audit", "op", "http 127.0.0.1:", "conflict"},
		{"switch-off", "audit", "op", "http 127.0.0.1:", "done"},
		{"switch-off", "logging", "nats", "nats shallot.v1.control.disable", "done"},
		{"decide", first, "op", "http 127.0.0.1:", "done"},
		{"decide", second, "nats", "nats shallot.v1.approval.answer", "done"},
		{"decide", second, "op", "http 127.0.0.1:", "conflict"},
		{"tool-registered", "mine@1", "op", "http 127.0.0.1:", "done"},
		{"switch-on", "logging", "nats", "nats shallot.v1.control.enable", "done"},
	}
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	s, err := js.OrderedConsumer(t.Context(), "SHALLOT_AUDIT",
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{"shallot.v1.audit.control"}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(want) > 0 {
		m, err := s.Next(jetstream.FetchContext(ctx))
		require.NoError(t, err, "missing: %v", want)
		get := func(k string) string { return gjson.GetBytes(m.Data(), k).Str }
		require.Equal(t, want[0].action+" "+want[0].what+" "+want[0].by, get("action")+" "+get("what")+" "+get("by"))
		require.Contains(t, get("from"), want[0].from)
		require.Equal(t, want[0].outcome, get("outcome"))
		want = want[1:]
	}
}
