package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// lines is a log that a test reads while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The sample of accounts and permissions works: each role can do its work and nothing else (lease.md 10).
func TestPermissionsSample(t *testing.T) {
	for _, v := range []string{"SHALLOT_ADMIN_PASSWORD", "SHALLOT_PASSWORD", "ACME_PASSWORD", "TOOL_PASSWORD", "STAGE_PASSWORD", "OBSERVER_PASSWORD", "SYS_PASSWORD"} {
		t.Setenv(v, "secret")
	}
	opts, err := server.ProcessConfigFile("../../../deploy/nats-permissions.conf")
	require.NoError(t, err)
	opts.Port, opts.StoreDir, opts.NoSigs, opts.NoLog = server.RANDOM_PORT, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(10*time.Second))
	url := func(user string) string { return strings.Replace(s.ClientURL(), "://", "://"+user+":secret@", 1) }

	log := &lines{}
	file := t.TempDir() + "/shallot.yaml"
	require.NoError(t, os.WriteFile(file, []byte(`
stages: [{name: mine, kind: tool, enabled: false, phases: [after], order: 60, writes: [reply]}]
tool:
  tools:
    - {name: spell, executor: "nats:tools.spell", effect: read}
    - {name: upper, description: Upper case, input-schema: {type: object, properties: {text: {type: string}}}, executor: "nats:tools.upper", effect: read, stages: {optional: [mine]}}
    - {name: careful, executor: "nats:tools.upper", effect: write, approval: always}
`), 0o600))
	start := func(user, provision string, roles host.Roles) *host.Host {
		l, err := host.Load(file, nil, map[string]string{"nats.url": url(user), "nats.provision": provision})
		require.NoError(t, err)
		h, err := host.Start(t.Context(), host.Options{Config: l, Roles: roles, Name: user, Log: slog.New(slog.NewTextHandler(log, nil)), Drain: time.Second})
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			require.NoError(t, h.Stop(ctx))
		})
		return h
	}
	require.NoError(t, start("admin", "create", host.Roles{}).Stop(t.Context()))
	gateway := start("shallot", "verify", host.Roles{Entry: true})
	start("shallot", "verify", host.Roles{All: true, Model: true, Tool: true})

	var denied lines
	dial := func(user string, more ...nats.Option) *nats.Conn {
		nc, err := nats.Connect(url(user), append(more, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			_, _ = denied.Write([]byte(user + ": " + err.Error() + "\n"))
		}))...)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	tool := dial("tool")
	svc, err := micro.AddService(tool, micro.Config{Name: "upper", Version: "1.0.0", Endpoint: &micro.EndpointConfig{
		Subject: "tools.upper", Handler: micro.HandlerFunc(func(r micro.Request) {
			var in struct{ Text string }
			_ = json.Unmarshal(r.Data(), &in)
			_ = r.RespondJSON(map[string]string{"text": strings.ToUpper(in.Text)})
		}),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = svc.Stop() })
	require.NoError(t, svc.AddEndpoint("spell", micro.HandlerFunc(func(r micro.Request) {
		for i, letter := range []string{"o", "n", "i", "o", "n"} {
			_ = r.Respond([]byte(letter), micro.WithHeaders(micro.Headers{"Shallot-Chunk": {strconv.Itoa(i + 1)}}))
		}
		_ = r.Respond(nil, micro.WithHeaders(micro.Headers{"Shallot-Chunks": {"5"}}))
	}), micro.WithEndpointSubject("tools.spell")))
	require.NoError(t, tool.Flush())
	stage := dial("stage")
	_, err = stage.QueueSubscribe("shallot.v1.stage.tool.mine", "mine", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"verdict":"continue","set":{"reply.seen":true}}`))
	})
	require.NoError(t, err)
	require.NoError(t, stage.Flush())

	acme := dial("acme", nats.CustomInboxPrefix("_INBOX_acme"))
	ask := func(subject, body string, header nats.Header) string {
		m, err := acme.RequestMsg(&nats.Msg{Subject: subject, Data: []byte(body), Header: header}, 10*time.Second)
		require.NoError(t, err, "%s\n%s%s", subject, log, denied.String())
		return string(m.Data)
	}
	const hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
	require.Contains(t, ask("shallot.v1.tenant.acme.model.request", hello, nil), `"content":"hello"`)
	require.Contains(t, ask("shallot.v1.tenant.acme.model.request", hello, nats.Header{"Shallot-Session": {"s1"}, "Idempotency-Key": {"k1"}}), `"content":"hello"`)
	data, _ := natsStream(t, acme, "shallot.v1.tenant.acme.tool.request.spell", `{}`)
	require.Equal(t, "onion", data, "a tool may send chunks")
	require.JSONEq(t, `{"text":"HI","seen":true}`, ask("shallot.v1.tenant.acme.tool.request.upper", `{"text":"hi"}`, nil))
	require.Contains(t, ask("shallot.v1.tenant.acme.model.request", strings.Replace(hello, "hello", strings.Repeat("x", 300<<10), 1), nil), "xxxx", "over the claim check")
	// A call that waits: the caller does not decide about it, and gets his result where results are.
	require.Contains(t, ask("shallot.v1.tenant.acme.tool.request.careful", `{"text":"hi"}`, nats.Header{"Idempotency-Key": {"k2"}}), "approval_pending")
	list, err := gateway.Approvals(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, err = gateway.StateKey(t.Context())
	require.NoError(t, err)
	require.NoError(t, gateway.Decide(t.Context(), "acme", list[0].Call, json.RawMessage(`"approve"`), "ann"))
	require.Eventually(t, func() bool {
		return strings.Contains(ask("shallot.v1.tenant.acme.result."+list[0].Call, "", nil), `"HI"`)
	}, 10*time.Second, 20*time.Millisecond)
	_, err = gateway.Control().Switch(t.Context(), "logging", false, "", "test")
	require.NoError(t, err)
	_, err = gateway.Control().Diagnostics(t.Context())
	require.NoError(t, err)
	require.NotContains(t, log.String(), "Permissions Violation")
	require.NotContains(t, log.String(), "level=ERROR")
	require.Empty(t, denied.String())

	refused := func(nc *nats.Conn, subject string) {
		t.Helper()
		before := len(denied.String())
		require.NoError(t, nc.PublishRequest(subject, "_INBOX.x", []byte("{}")))
		require.NoError(t, nc.Flush())
		require.Eventually(t, func() bool { return len(denied.String()) > before }, 5*time.Second, time.Millisecond, "%s may publish on %s", nc.Opts.Url, subject)
	}
	refused(acme, "shallot.v1.tenant.other.model.request")
	refused(acme, "shallot.v1.model.request")
	refused(acme, "shallot.v1.control.disable")
	refused(acme, "shallot.v1.tenant.acme.approval.answer")
	refused(acme, "shallot.v1.approval.answer")
	refused(acme, "$KV.shallot_control.stage.model.audit.enabled")
	refused(tool, "$JS.ACK.SHALLOT_CALLS.entry-model.1.1.1.1.0")
	refused(tool, "shallot.v1.model.request")
	refused(stage, "$JS.ACK.SHALLOT_HOPS.route-tool.1.1.1.1.0")
	refused(stage, "shallot.v1.hop.tool.after.mine")
	observer := dial("observer", nats.CustomInboxPrefix("_INBOX_observer"))
	refused(observer, "$JS.ACK.SHALLOT_HOPS.route-model.1.1.1.1.0")
	refused(observer, "$JS.API.STREAM.MSG.GET.SHALLOT_DEAD")
	js, err := jetstream.New(observer)
	require.NoError(t, err)
	st, err := js.Stream(t.Context(), "SHALLOT_HOPS")
	require.NoError(t, err, "an observer sees the backlog")
	require.Zero(t, st.CachedInfo().State.Msgs)
	m, err := observer.Request("$SRV.STATS.shallot", nil, 5*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), `"name":"shallot"`)
}
