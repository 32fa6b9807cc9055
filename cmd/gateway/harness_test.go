package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

const (
	goodBody   = `{"model":"m1","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// localEntry is an in-process Entry over pipeline.Local with a scripted target.
type localEntry struct {
	stages []pipeline.Stage
	target pipeline.TargetFunc
	accept func(pipeline.Request) error // refuses, if set
	left   chan string

	mu      sync.Mutex
	seen    []pipeline.Request
	tenants map[string]string
	ended   map[string]*messages.Call
}

func (d *localEntry) Accept(_ context.Context, r pipeline.Request) (pipeline.Pending, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, r)
	if d.accept != nil {
		if err := d.accept(r); err != nil {
			return nil, err
		}
	}
	c := messages.NewCall(r.Kind, r.Tenant, r.Body)
	c.Stream, c.Session, c.Deadline = r.Stream, r.Session, r.Deadline
	if d.tenants == nil {
		d.tenants, d.ended = map[string]string{}, map[string]*messages.Call{}
	}
	d.tenants[c.ID] = r.Tenant
	return &localPending{d: d, c: c}, nil
}

func (d *localEntry) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	d.mu.Lock()
	owner, c := d.tenants[id], d.ended[id]
	d.mu.Unlock()
	if owner == "" || owner != tenant {
		return nil, messages.NewFault(messages.NotFound, "no call %q", id).From("entry")
	}
	if c == nil {
		<-ctx.Done()
	}
	return c, nil
}

func (d *localEntry) end(c *messages.Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended[c.ID] = c
}

func (d *localEntry) last(t *testing.T) pipeline.Request {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NotEmpty(t, d.seen, "the door saw no request")
	return d.seen[len(d.seen)-1]
}

type localPending struct {
	d *localEntry
	c *messages.Call
}

func (p *localPending) ID() string { return p.c.ID }

func (p *localPending) Leave() {
	if p.d.left != nil {
		select {
		case p.d.left <- p.c.ID:
		default:
		}
	}
}

func (p *localPending) Wait(ctx context.Context, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	n := 0
	l := pipeline.Chain(p.d.stages, p.d.target)
	l.Emit = func(chunk []byte) error {
		n++
		if onDelta != nil {
			onDelta(pipeline.Delta{Source: "1", N: n, Chunk: chunk})
		}
		return ctx.Err()
	}
	c, err := l.Call(ctx, p.c)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return c, err
}

// plainFollower releases every chunk, and replays the reply where there was none.
type plainFollower struct{ shown bool }

func (f *plainFollower) Delta(d pipeline.Delta) [][]byte {
	f.shown = true
	return [][]byte{d.Chunk}
}

func (f *plainFollower) End(c *messages.Call) ([][]byte, *messages.Fault) {
	if c.Fault != nil || f.shown {
		return nil, c.Fault
	}
	return [][]byte{c.Reply()}, nil
}

// replies is a target that answers with the bytes.
func replies(reply string) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(reply))
		return nil
	}
}

func faults(f *messages.Fault) pipeline.TargetFunc {
	return func(context.Context, *messages.Call, pipeline.Emit) error { return f }
}

type testGateway struct {
	*httptest.Server
	s    *server
	door *localEntry
	log  *bytes.Buffer
}

// start serves the main port on loopback. edit may change settings and parts.
func start(t *testing.T, door *localEntry, edit func(*settings, *parts)) *testGateway {
	t.Helper()
	if door.target == nil {
		door.target = replies(`{"ok":true}`)
	}
	log := &bytes.Buffer{}
	c := settings{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	p := parts{
		Entry: door, NewFollower: func([]byte) follower { return &plainFollower{} },
		Models: func(context.Context) []modelInfo {
			return []modelInfo{{"m1", 1700000000, "demo"}, {"org/m2", 1700000001, "demo"}, {"agent/helper", 1700000002, "shallot"}}
		},
		Log: slog.New(slog.NewJSONHandler(&lockedWriter{w: log}, nil)),
	}
	if edit != nil {
		edit(&c, &p)
	}
	s, err := newServer(c, p)
	require.NoError(t, err)
	ts := httptest.NewServer(s.handler())
	t.Cleanup(ts.Close)
	return &testGateway{Server: ts, s: s, door: door, log: log}
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

type reply struct {
	*http.Response
	body string
}

func (r reply) param() string   { return gjson.Get(r.body, "error.param").String() }
func (r reply) message() string { return gjson.Get(r.body, "error.message").String() }

// isFault checks the whole error shape: four keys, the code's header, x-should-retry.
func (r reply) isFault(t *testing.T, code messages.Code) {
	t.Helper()
	require.Equal(t, string(code), r.Header.Get("Shallot-Fault"), r.body)
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	for _, key := range []string{"message", "type", "param", "code"} {
		require.True(t, gjson.Get(r.body, "error."+key).Exists(), "error.%s in %s", key, r.body)
	}
	require.NotEmpty(t, r.Header.Get("X-Request-Id"))
	if !code.Info().Retryable {
		require.Equal(t, "false", r.Header.Get("X-Should-Retry"))
	}
}

// do sends a request; headers are "Name: value" lines.
func (g *testGateway) do(t *testing.T, method, path, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, g.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch name {
		case "Host":
			req.Host = value
		case "Content-Type":
			req.Header.Set(name, value)
		default:
			req.Header[name] = append(req.Header[name], value)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return reply{res, string(raw)}
}

func (g *testGateway) chat(t *testing.T, body string, headers ...string) reply {
	t.Helper()
	return g.do(t, "POST", "/v1/chat/completions", body, headers...)
}

// raw sends bytes as they are, for requests that no client library would make.
func (g *testGateway) raw(t *testing.T, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, request)
	require.NoError(t, err)
	out, _ := io.ReadAll(conn)
	return string(out)
}

func keysOf(t *testing.T, yaml string) *keyStore {
	t.Helper()
	k, err := parseKeys([]byte(yaml), "pepper")
	require.NoError(t, err)
	return k
}

// twoTenants has keys a (tenant ta), b (tenant tb) and op (operator).
func twoTenants(t *testing.T) *keyStore {
	return keysOf(t, fmt.Sprintf(`
keys:
  - {id: a, hash: %q, tenant: ta, models: ["m1", "org/*"], agents: [helper]}
  - {id: b, hash: %q, tenant: tb, user: fixed}
  - {id: op, hash: %q, tenant: ops, role: operator}
`, hashKey("key-a", []byte("pepper")), hashKey("key-b", []byte("pepper")), hashKey("key-op", nil)))
}

const (
	authA  = "Authorization: Bearer key-a"
	authB  = "Authorization: Bearer key-b"
	authOp = "Authorization: Bearer key-op"
)
