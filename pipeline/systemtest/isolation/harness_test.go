package isolation

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

func TestMain(m *testing.M) {
	pace.Parallel(8)
	os.Exit(m.Run())
}

// The tenants of the tests, each with a key over HTTP and a user of NATS of its own. Names that look alike as subjects,
// keys and paths are what a careless rule would mix up.
const (
	acme   = "acme"
	globex = "acme.globex"
)

const password = "secret"

// installation is a whole one: a NATS server with permissions, a gateway with its HTTP and MCP faces, and a worker.
type installation struct {
	t      *testing.T
	server *server.Server
	host   *host.Host // of the gateway
	log    apitest.Output
	http   *httpapi.Server
	base   string // of the main listener
	admin  string // of the listener for operators
}

// natsServer runs a server with the permissions that the sample gives, and a user of a second tenant, made like that of
// the first. edit may change the sample's text.
func natsServer(t *testing.T, edit func(string) string) *server.Server {
	t.Helper()
	const file = "../../../deploy/nats-permissions.conf"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(raw)
	text = regexp.MustCompile(`\$[A-Z_]+_PASSWORD`).ReplaceAllString(text, password)
	if edit != nil {
		text = edit(text)
	}
	conf := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
	o, err := server.ProcessConfigFile(conf)
	require.NoError(t, err)
	for _, u := range o.Users {
		switch u.Username {
		case acme:
			other := *u
			other.Username, other.Permissions = "globex", renamed(u.Permissions)
			o.Users = append(o.Users, &other)
		case "gateway": // who has a prefix of inboxes is named here too
			u.Permissions.Publish.Allow = append(u.Permissions.Publish.Allow, "_INBOX_globex.>")
		}
	}
	o.Port, o.StoreDir, o.NoSigs, o.NoLog = server.RANDOM_PORT, t.TempDir(), true, true
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return s
}

// renamed are the permissions of the first tenant's user, for the second tenant's.
func renamed(p *server.Permissions) *server.Permissions {
	change := strings.NewReplacer("tenant.acme.", "tenant.acme=2Eglobex.", "_INBOX_acme", "_INBOX_globex")
	each := func(s *server.SubjectPermission) *server.SubjectPermission {
		if s == nil {
			return nil
		}
		out := &server.SubjectPermission{}
		for _, x := range s.Allow {
			out.Allow = append(out.Allow, change.Replace(x))
		}
		for _, x := range s.Deny {
			out.Deny = append(out.Deny, change.Replace(x))
		}
		return out
	}
	return &server.Permissions{Publish: each(p.Publish), Subscribe: each(p.Subscribe), Response: p.Response}
}

// url is the server's address for a user.
func (i *installation) url(user string) string {
	return strings.Replace(i.server.ClientURL(), "://", "://"+user+":"+password+"@", 1)
}

// keys are the keys-file: a caller of each tenant, and an operator.
func keys() string {
	record := func(id, tenant, role string) string {
		return fmt.Sprintf("  - {id: %s, hash: %q, tenant: %q, role: %s}\n", id, httpapi.HashKey("key-"+id, nil), tenant,
			role)
	}
	return "keys:\n" + record("acme", acme, "caller") + record("globex", globex, "caller") +
		record("op", "ops", "operator")
}

// start runs an installation. yaml is added to its configuration.
func start(t *testing.T, yaml string) *installation {
	t.Helper()
	return startOn(t, natsServer(t, nil), yaml)
}

func startOn(t *testing.T, s *server.Server, yaml string) *installation {
	t.Helper()
	i := &installation{t: t, server: s}
	log := slog.New(slog.NewTextHandler(&i.log, nil))
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\n"+yaml), 0o600))
	run := func(user, provision string, roles host.Roles) *host.Host {
		l, err := host.Load(file, nil, map[string]string{"nats.url": i.url(user), "nats.provision": provision})
		require.NoError(t, err)
		h, err := host.Start(t.Context(), host.Options{Config: l, Roles: roles, Name: user, Log: log, Drain: time.Second,
			Getenv: func(string) string { return "" }})
		require.NoError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = h.Stop(ctx)
		})
		return h
	}
	require.NoError(t, run("admin", "create", host.Roles{}).Stop(t.Context()))
	i.host = run("gateway", "verify", host.Roles{Entry: true})
	run("worker", "verify", host.Roles{All: true, Model: true, Tool: true})
	i.serve(log)
	return i
}

// serve opens the HTTP and MCP faces, as the gateway does.
func (i *installation) serve(log *slog.Logger) {
	i.http = i.face(log, time.Minute)
	i.base, i.admin = i.listen(i.http, i.http.Handler()), i.listen(i.http, i.http.AdminHandler())
}

// face is a server that waits so long for headers and bodies.
func (i *installation) face(log *slog.Logger, limit time.Duration) *httpapi.Server {
	t, h := i.t, i.host
	k, err := httpapi.ParseKeys([]byte(keys()), "")
	require.NoError(t, err)
	s, err := httpapi.New(httpapi.Config{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081", BodyLimit: bodyLimit,
		HeaderTimeout: limit, BodyTimeout: limit}, httpapi.Deps{
		Keys: k, Log: log, Entry: h.Entry(), Control: h.Control(), Tools: h.Tools,
		Approvals: h.Approvals, Agents: h.Agents, Dead: h.Dead(),
		Models:    func(context.Context) []api.ModelInfo { return []api.ModelInfo{{ID: "demo/echo"}} },
		Calls:     i.host.Calls,
		Responses: h.Responses, Cancel: h.Node.Cancel,
		Todo: &httpapi.TodoLists{Load: h.Todo.Load, Edit: h.Todo.Edit},
	})
	require.NoError(t, err)
	m, err := mcpapi.New(mcpapi.Options{Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP,
		Tasks: h.Node, Agents: h.Agents, Approvals: h.Approvals, Version: "1", Log: log,
		Local: api.Identity{Tenant: "default", Role: api.RoleCaller}})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	s.Extra = append(
		httpapi.NewPage("shallot", "1", "").Surfaces(),
		httpapi.Surface{Pattern: "/mcp", Handler: m.Handler(bodyLimit)},
		httpapi.Surface{Pattern: "/metrics", Control: true, Handler: i.host.Telemetry.Page()},
	)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		m.EndSessions()
		_ = s.Shutdown(ctx)
	})
	return s
}

const bodyLimit = 1 << 20

func (i *installation) listen(s *httpapi.Server, handler http.Handler) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(i.t, err)
	go func() { _ = s.ServeOn(l, handler) }()
	return "http://" + l.Addr().String()
}

// reply is an answer, by whichever way it came. fault is its code, if it is one.
type reply struct {
	status int
	fault  string
	header func(string) string
	body   string
}

func (r reply) String() string { return fmt.Sprintf("%d %s %.300s", r.status, r.fault, r.body) }

// ask sends an HTTP request of a key. headers are "Name: value" lines.
func ask(t *testing.T, base, key, method, path, body string, headers ...string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	require.NoError(t, err)
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer key-"+key)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return reply{res.StatusCode, res.Header.Get("Shallot-Fault"), res.Header.Get, string(raw)}
}

// user is a connection to NATS.
type user struct {
	*nats.Conn
	denied chan string
}

func (i *installation) dial(name string, more ...nats.Option) user {
	u := user{denied: make(chan string, 1000)}
	nc, err := nats.Connect(i.url(name), append(more, nats.CustomInboxPrefix("_INBOX_"+name),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.denied <- err.Error() }))...)
	require.NoError(i.t, err)
	i.t.Cleanup(nc.Close)
	u.Conn = nc
	return u
}

// ask sends a request on a subject, and returns the answer that is not empty.
func (u user) ask(t *testing.T, subject, body string, headers ...string) reply {
	t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{}}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		m.Header[name] = append(m.Header[name], value)
	}
	out, err := u.RequestMsg(m, time.Minute)
	require.NoError(t, err, subject)
	r := reply{status: 200, fault: out.Header.Get("Shallot-Fault"), header: out.Header.Get, body: string(out.Data)}
	if code := out.Header.Get("Nats-Service-Error-Code"); code != "" {
		r.status = int(gjson.Parse(code).Int())
	}
	return r
}
