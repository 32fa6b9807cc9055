package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// With a keys file the embedded server lets in who has a key, and each only to what the key is for: no other tenant's
// calls, no control, no approvals, no acknowledgements, no store, no other one's answers (SE-2).
func TestTheEmbeddedServerAsksForKeys(t *testing.T) {
	t.Parallel()
	keys := keysFile(t, map[string]string{
		"a": `,"tenant":"t.a"`, "plain": ``, "op": `,"role":"operator"`, "tools": `,"tenant":"ta","tools":["add","ech*"]`,
		"models": `,"tenant":"ta","models":["demo/*"]`, "opfew": `,"role":"operator","tools":["add"]`,
	})
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`{version: 1, http: {keys-file: "`+keys+`"}}`), 0o600))
	_, url := command(t, "--config", file)
	for name, opts := range map[string][]nats.Option{
		"nobody": nil, "no password": {nats.UserInfo("a", "")}, "another's": {nats.UserInfo("a", "key-op")},
		"token":   {nats.Token("key-a")},
		"our own": {nats.UserInfo("shallot", "key-op")}, "empty": {nats.UserInfo("", "key-op")},
		"long": {nats.UserInfo("a", strings.Repeat("k", 3000))},
	} {
		_, err := nats.Connect(url, opts...)
		require.ErrorIs(t, err, nats.ErrAuthorization, name)
	}
	type user struct {
		*nats.Conn
		denied chan string
	}
	dial := func(name string) user {
		u := user{denied: make(chan string, 100)}
		var err error
		u.Conn, err = nats.Connect(url, nats.UserInfo(name, "key-"+name), nats.CustomInboxPrefix("_INBOX_"+name),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.denied <- err.Error() }))
		require.NoError(t, err)
		t.Cleanup(u.Close)
		return u
	}
	const add = `{"a":1,"b":2}`
	for _, tt := range []struct{ who, subject, body, want string }{
		{"a", "shallot.v1.tenant.t=2Ea.model.request", hello, `"hello"`},
		{"a", "shallot.v1.tenant.t=2Ea.tool.request.add", add, `{"sum":3}`},
		{"a", "shallot.v1.tenant.t=2Ea.tool.submit.add", add, "accepted"},
		{"a", "shallot.v1.tenant.t=2Ea.todo.get", `{"session":"s"}`, `"items"`},
		{"plain", "shallot.v1.model.request", hello, `"hello"`},
		{"plain", "shallot.v1.tenant.default.tool.request.add", add, `{"sum":3}`},
		{"tools", "shallot.v1.tenant.ta.tool.request.add", add, `{"sum":3}`},
		{"opfew", "shallot.v1.tool.request.add", add, `{"sum":3}`},
		{"models", "shallot.v1.tenant.ta.tool.request.add", add, `{"sum":3}`},
		{"op", "shallot.v1.control.stats", "", "interceptors"},
		{"op", "shallot.v1.tenant.t=2Ea.model.request", hello, `"hello"`},
		{"op", "$JS.API.STREAM.NAMES", "", "SHALLOT_AUDIT"},
	} {
		m, err := dial(tt.who).Request(tt.subject, []byte(tt.body), 30*time.Second)
		require.NoError(t, err, "%s %s", tt.who, tt.subject)
		require.Contains(t, string(m.Data), tt.want, "%s %s", tt.who, tt.subject)
	}
	everybody := []string{
		"shallot.v1.control.disable", "shallot.v1.control.stats", "shallot.v1.approval.answer",
		"shallot.v1.tenant.tb.model.request",
		"shallot.v1.tenant.t=2Ea.approval.answer", "shallot.v1.cancel.x", "shallot.v1.hop.model.before.audit",
		"shallot.v1.call.entry.model",
		"$JS.ACK.SHALLOT_CALLS.x.1.1.1.1.1", "$JS.API.STREAM.DELETE.SHALLOT_AUDIT",
		"$KV.shallot_control.stage.model.audit.enabled",
		"$O.shallot_bodies.C.x", "$SYS.REQ.SERVER.PING", "shallot.v1.audit.audit", "_INBOX.x", "_INBOX_op.x",
	}
	more := map[string][]string{
		"a":     {"shallot.v1.model.request", "shallot.v1.tool.request.add", "shallot.v1.result.x"},
		"plain": {"shallot.v1.tenant.ta.result.x"},
		"tools": {"shallot.v1.tenant.ta.tool.request.echo", "shallot.v1.tenant.ta.tool.submit.add",
			"shallot.v1.tenant.ta.result.x"},
		"models": {"shallot.v1.tenant.ta.model.request", "shallot.v1.tenant.ta.model.submit",
			"shallot.v1.tenant.ta.result.x"},
		"opfew": {"shallot.v1.tool.request.echo"},
	}
	for who, also := range more {
		u := dial(who)
		said := func(what string) {
			select {
			case text := <-u.denied:
				require.Contains(t, strings.ToLower(text), "permissions violation", what)
			case <-time.After(time.Minute):
				require.Fail(t, "it was let through", "%s %s", who, what)
			}
		}
		for _, subject := range append(also, everybody...) {
			require.NoError(t, u.Publish(subject, []byte("audit")))
			require.NoError(t, u.Flush())
			said(subject)
		}
		for i, subject := range []string{">", "_INBOX.>", "_INBOX_op.>", "shallot.v1.>", "$SRV.PING", "*.v1.audit.>",
			"_INBOX_" + who + "x.>"} {
			_, err := u.QueueSubscribeSync(subject, []string{"", "entry"}[i%2])
			require.NoError(t, err)
			require.NoError(t, u.Flush())
			said("subscribe " + subject)
		}
	}
}
