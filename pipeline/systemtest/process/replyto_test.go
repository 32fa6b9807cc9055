//go:build unix

package process

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// notInboxes are reply subjects that no caller may name: answers would do something there, or nobody could get them.
// The server itself refuses $JS.ACK and _R_ as reply subjects of clients.
var notInboxes = []string{
	"shallot.v1.control.disable", "shallot.v1.control.enable", "shallot.v1.approval.answer",
	"shallot.v1.tenant.other.approval.answer", "shallot.v1.tenant.other.tool.request.echo",
	"shallot.v1.tenant.acme.tool.request.echo",
	"shallot.v1.model.submit", "shallot.v1.cancel.x", "shallot.v1.hop.tool.before.audit", "shallot.v1.call.entry.tool",
	"$KV.shallot_control.x", "$O.shallot_bodies.C.x", "$JS.API.STREAM.DELETE.SHALLOT_AUDIT",
	"$SRV.PING", "$SYS.REQ.SERVER.PING", "events.mine", "INBOX.x", "_inbox.x", "_INBOX", "_INBOXES.x", "x_INBOX.y",
	"_INBOX.", "_INBOX..x", "_INBOX.x.", "_INBOX.x..y", "_INBOX.*", "_INBOX.>", "_INBOX_acme.*.x", "_INBOX_acme.>",
	"_INBOX." + strings.Repeat("x", 2000),
}

// TestNoAnswerGoesAnywhereButToAnInbox asks everything that Shallot answers, as a caller of the permissions file and as
// somebody who may ask all of it, with reply subjects that are not inboxes. Nothing comes there, no call begins, and
// each is counted (SE-1).
func TestNoAnswerGoesAnywhereButToAnInbox(t *testing.T) {
	t.Parallel()
	conf, err := filepath.Abs("../../../deploy/nats-permissions.conf")
	require.NoError(t, err)
	var env []string
	for _, who := range []string{"SHALLOT_ADMIN", "GATEWAY", "WORKER", "OPERATOR", "ACME", "TOOL",
		"STAGE", "OBSERVER", "SYS"} {
		env = append(env, who+"_PASSWORD=secret")
	}
	c := newClusterOf(t, []string{"-c", conf}, env...)
	_, server, _ := strings.Cut(c.url, "://")
	as := func(user string) string { return "nats://" + user + ":secret@" + server }
	c.url = as("admin")
	first, _ := c.gateway()
	first.signal(15)
	first.wait()
	c.url = as("gateway")
	c.env = append(c.env, "SHALLOT_NATS__PROVISION=verify")
	c.gateway()
	c.url = as("worker")
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	require.JSONEq(t, `{"sum":3}`, string(c.req("shallot.v1.tenant.acme.tool.request.add", `{"a":1,"b":2}`).body))

	var came, began atomic.Int64
	where := map[string]bool{}
	for _, s := range notInboxes {
		where[s] = true
	}
	_, err = c.nc.Subscribe(">", func(m *nats.Msg) {
		if where[m.Subject] && m.Header.Get("X-Mark") == "" {
			came.Add(1)
			t.Logf("an answer came on %s: %q", m.Subject, m.Data)
		}
		if strings.HasPrefix(m.Subject, "shallot.v1.call.entry.") {
			began.Add(1)
		}
	})
	require.NoError(t, err)
	require.NoError(t, c.nc.Flush())

	before := refusedReplies(t, c)
	acme, err := nats.Connect(as("acme"))
	require.NoError(t, err)
	t.Cleanup(acme.Close)
	n := 0
	attack := func(nc *nats.Conn, subject, body string, header nats.Header, replies []string) {
		for _, reply := range replies {
			h := nats.Header{"X-Mark": {"1"}}
			for k, v := range header {
				h[k] = v
			}
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: h, Data: []byte(body)}))
			n++
		}
	}
	const stream = `{"model":"demo/echo","stream":true,"messages":[{"role":"user","content":"audit"}]}`
	for subject, body := range map[string]string{
		"model.request": stream, "model.submit": echo, "tool.request.failing": `{}`,
		"tool.request.echo":   `{"name":"audit","confirm":"audit"}`,
		"tool.request.nobody": `{}`, "tool.request.a=ZZ": `{}`, "tool.submit.echo": `{}`, "agent.request": `{}`,
		"result.x": ``,
		"todo.get": ``, "todo.put": `{`,
	} {
		attack(acme, "shallot.v1.tenant.acme."+subject, body, nil, notInboxes)
		attack(c.nc, "shallot.v1.tenant.other."+subject, body, nil, notInboxes[:3])
		attack(c.nc, "shallot.v1."+subject, body, nats.Header{"Shallot-Stream": {"on"}}, notInboxes[:3])
	}
	for _, subject := range []string{
		"tenant.acme.approval.list", "approval.list", "approval.answer", "control.stats", "control.diagnostics",
		"control.enable", "control.disable", "echo",
	} {
		attack(c.nc, "shallot.v1."+subject, `audit`, nil, notInboxes)
	}
	require.NoError(t, acme.Flush())
	require.NoError(t, c.nc.Flush())
	counted := func() bool { return refusedReplies(t, c)-before == int64(n) }
	require.Eventually(t, counted, 30*time.Second, 20*time.Millisecond, "each is counted once")
	for _, verb := range []string{"PING", "INFO.shallot", "STATS.shallot"} {
		attack(c.nc, "$SRV."+verb, ``, nil, notInboxes[:8])
		n += 8 // the gateway's and the worker's
	}
	attack(c.nc, "shallot.v1.control.report", ``, nil, notInboxes[:8])
	n += 8
	require.NoError(t, c.nc.Flush())
	require.Eventually(t, counted, 30*time.Second, 20*time.Millisecond, "every process counts its own")
	require.Zero(t, came.Load())
	require.Zero(t, began.Load(), "no work was done")
	warned := 0
	for _, p := range c.all[1:] {
		warned += strings.Count(p.String(), "not an inbox")
	}
	require.Positive(t, warned)
	require.Less(t, warned, 20, "who floods us does not fill the log")
}

// refusedReplies is how many requests all processes have refused for their reply subject.
func refusedReplies(t *testing.T, c *cluster) (sum int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, c.nc.PublishRequest("shallot.v1.control.report", sub.Subject, nil))
	for range 2 { // gateway and worker
		m, err := sub.NextMsgWithContext(ctx)
		require.NoError(t, err)
		require.True(t, json.Valid(m.Data))
		sum += gjson.GetBytes(m.Data, "refusedReplies").Int()
	}
	return sum
}
