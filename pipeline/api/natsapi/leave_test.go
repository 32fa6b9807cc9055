package natsapi_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

const (
	body    = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	flow    = `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`
	replied = `{"id":"r","choices":[{"index":0,"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}`
	model   = "shallot.v1.model.request"
	long    = 30 * time.Second // for what comes at once
)

// world is a server with its streams, and nodes on it.
type world struct {
	*testing.T
	srv *embed.Server
	cfg bus.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	w := &world{t, srv, bus.Config{ModelClasses: []string{"default"}, ToolClasses: []string{"default"},
		AfterOutage: 100 * time.Millisecond}}
	js, err := jetstream.New(w.conn())
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, w.cfg))
	return w
}

// in is the world for a part of a test, whose connections end with it.
func (w *world) in(t *testing.T) *world { return &world{t, w.srv, w.cfg} }

func (w *world) conn(o ...nats.Option) *nats.Conn {
	w.Helper()
	nc, err := nats.Connect("", append(o, nats.InProcessServer(w.srv))...)
	require.NoError(w, err)
	w.Cleanup(nc.Close)
	return nc
}

// node starts a process that owns calls and does their work. With o it answers callers.
func (w *world) node(o *natsapi.Options, do pipeline.TargetFunc) *bus.Node {
	w.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: w.Name(), InProcess: w.srv, Direct: true})
	require.NoError(w, err)
	opts := bus.Options{Conn: nc, Config: w.cfg, Entry: true, Manager: &pipeline.Manager{},
		Targets: []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: do}}}
	var face *natsapi.Server
	if o != nil {
		o.Conn = nc
		face = natsapi.New(*o)
		opts.Callers = face
	}
	n, err := bus.New(w.Context(), opts)
	require.NoError(w, err)
	if face != nil {
		face.Calls = n
	}
	require.NoError(w, n.Start(context.WithoutCancel(w.Context())))
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = n.Stop(ctx)
		nc.Close()
	})
	return n
}

// slow is work that goes on until it is cancelled, or released.
type slow struct {
	begun   chan string // the calls
	ended   chan error  // why it was cancelled; nil: it was released
	release chan struct{}
}

func newSlow() *slow {
	return &slow{make(chan string, 10), make(chan error, 10), make(chan struct{})}
}

func (s *slow) do(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
	s.begun <- c.ID
	select {
	case <-ctx.Done():
		s.ended <- context.Cause(ctx)
		return context.Cause(ctx)
	case <-s.release:
		s.ended <- nil
		c.SetReply([]byte(replied))
		return nil
	}
}

func got[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(long):
		require.Fail(t, "it did not come", what)
	}
	return v
}

func publish(t *testing.T, nc *nats.Conn, inbox, data string, header nats.Header) {
	t.Helper()
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: model, Reply: inbox, Data: []byte(data), Header: header}))
	require.NoError(t, nc.Flush())
}

// fault is the code of the fault that a call ended with; empty while it runs, and for one that has a reply.
func fault(t *testing.T, n *bus.Node, call string) messages.Code {
	c, _, err := n.Peek(t.Context(), "default", call)
	if err != nil || c == nil || c.Fault == nil {
		return ""
	}
	return c.Fault.Code
}

// A caller that leaves is noticed, however they wait and however they leave: their call is cancelled (EN-7).
func TestACallerThatLeavesIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSlow()
	n := w.node(&natsapi.Options{Look: 40 * time.Millisecond}, s.do)
	own := func(data string) func(t *testing.T, nc *nats.Conn) func() {
		return func(t *testing.T, nc *nats.Conn) func() {
			sub, err := nc.SubscribeSync(nc.NewInbox())
			require.NoError(t, err)
			publish(t, nc, sub.Subject, data, nil)
			return func() { require.NoError(t, sub.Unsubscribe()) }
		}
	}
	for name, ask := range map[string]func(t *testing.T, nc *nats.Conn) (leave func()){
		"closes while a request waits": func(t *testing.T, nc *nats.Conn) func() {
			go func() { _, _ = nc.Request(model, []byte(body), long) }()
			return nc.Close
		},
		"unsubscribes its own inbox": own(body),
		"unsubscribes a stream":      own(flow),
		"never listened": func(t *testing.T, nc *nats.Conn) func() {
			publish(t, nc, nc.NewInbox(), body, nil)
			return func() {}
		},
		"leaves while somebody looks on": func(t *testing.T, nc *nats.Conn) func() {
			w := w.in(t)
			_, err := w.conn().SubscribeSync("_INBOX.>")
			require.NoError(t, err)
			told := traced(t, w.conn())
			leave := own(body)(t, nc)
			return func() {
				<-told // else who looks on is taken for the caller
				leave()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leave := ask(t, w.in(t).conn())
			call := got(t, s.begun, "the work")
			leave()
			require.ErrorIs(t, got(t, s.ended, "the end of the work"), pipeline.ErrCancelled)
			require.Eventually(t, func() bool { return fault(t, n, call) == messages.Cancelled }, long, 5*time.Millisecond)
		})
	}
	t.Run("gives up, with an inbox for each request", func(t *testing.T) {
		_, err := w.conn(nats.UseOldRequestStyle()).Request(model, []byte(body), 20*time.Millisecond)
		require.ErrorIs(t, err, nats.ErrTimeout)
		require.ErrorIs(t, got(t, s.ended, "the end of the work"), pipeline.ErrCancelled)
	})
}

// traced counts what the server tells of inboxes from now on.
func traced(t *testing.T, nc *nats.Conn) <-chan struct{} {
	t.Helper()
	told := make(chan struct{}, 1000)
	_, err := nc.Subscribe(">", func(m *nats.Msg) {
		if gjson.GetBytes(m.Data, "request.header.Nats-Trace-Only").Exists() {
			told <- struct{}{}
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return told
}

// A caller that waits gets its answer and nothing before it, however often it was looked at (EN-7).
func TestACallerOfOneAnswerGetsNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSlow()
	w.node(&natsapi.Options{Look: 10 * time.Millisecond, Beat: time.Millisecond}, s.do)
	answers, own := make(chan *nats.Msg, 3), w.conn()
	for _, nc := range []*nats.Conn{w.conn(), w.conn(nats.UseOldRequestStyle())} {
		go func() {
			m, _ := nc.Request(model, []byte(body), long)
			answers <- m
		}()
	}
	_, err := own.Subscribe("_INBOX.mine", func(m *nats.Msg) { answers <- m })
	require.NoError(t, err)
	publish(t, own, "_INBOX.mine", body, nil)
	for range 3 {
		got(t, s.begun, "the work")
	}
	told := traced(t, w.conn())
	for range 60 {
		got(t, told, "a look")
	}
	close(s.release)
	for range 3 {
		m := got(t, answers, "the answer")
		require.NotNil(t, m)
		require.Equal(t, "done", gjson.GetBytes(m.Data, "choices.0.message.content").Str, string(m.Data))
		require.NotEmpty(t, m.Header.Get("Shallot-Call"))
		require.NoError(t, got(t, s.ended, "the end of the work"))
	}
	require.NoError(t, own.Flush())
	require.Empty(t, answers)
}

// Who has a key may come back: their call goes on (EN-7).
func TestACallerWithAKeyMayLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSlow()
	var lines lines
	w.node(&natsapi.Options{Look: 40 * time.Millisecond, Log: lines.log()}, s.do)
	nc := w.conn()
	publish(t, nc, nc.NewInbox(), body, nats.Header{"Idempotency-Key": {"k"}})
	call := got(t, s.begun, "the work")
	require.Eventually(t, func() bool { return lines.has("its caller left") }, long, 5*time.Millisecond)
	close(s.release)
	require.NoError(t, got(t, s.ended, "the end of the work"))
	m, err := nc.Request("shallot.v1.result."+call, nil, long)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), "done")
}

// lines are what was logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// The first message of a stream names the call. While nothing is said, chunks that say nothing show that it goes on,
// and whoever has the id can end it (EN-7).
func TestAStreamShowsThatItGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSlow()
	w.node(&natsapi.Options{Beat: 10 * time.Millisecond}, s.do)
	nc := w.conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	publish(t, nc, sub.Subject, flow, nil)
	call := got(t, s.begun, "the work")
	for i := range 3 {
		m, err := sub.NextMsg(long)
		require.NoError(t, err)
		require.Equal(t, "running", m.Header.Get("Shallot-Status"))
		require.Equal(t, map[bool]string{true: call}[i == 0], m.Header.Get("Shallot-Call"))
		require.Equal(t, "chat.completion.chunk", gjson.GetBytes(m.Data, "object").Str, string(m.Data))
		require.Equal(t, "[]", gjson.GetBytes(m.Data, "choices").Raw)
	}
	_, err = nc.Request("shallot.v1.cancel."+call, nil, long)
	require.NoError(t, err)
	require.ErrorIs(t, got(t, s.ended, "the end of the work"), pipeline.ErrCancelled)
	codes := []string{}
	for {
		m, err := sub.NextMsg(long)
		require.NoError(t, err)
		if len(m.Data) == 0 {
			break
		}
		if code := m.Header.Get("Shallot-Fault"); code != "" {
			codes = append(codes, code)
		}
	}
	require.Equal(t, []string{"cancelled"}, codes)
}

// A cancel says what it did, for calls of any process, stored or not; asked again it says the same (EN-7).
func TestACancelSaysWhatItDid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSlow()
	owner := w.node(nil, s.do)
	chat := pipeline.Request{Kind: messages.Model, Body: []byte(body), Tenant: "acme"}
	begin := func(change func(r *pipeline.Request)) string {
		r := chat
		change(&r)
		_, err := owner.Accept(t.Context(), r)
		require.NoError(t, err)
		return got(t, s.begun, "the work")
	}
	stored := begin(func(r *pipeline.Request) { r.Submit = true })
	theirs := begin(func(r *pipeline.Request) { r.IdempotencyKey = "k" })
	bound := begin(func(*pipeline.Request) {})
	alsoBound := begin(func(*pipeline.Request) {})
	w.node(&natsapi.Options{}, newSlow().do) // it owns none of them
	nc := w.conn()
	cancel := func(subject string) (status, outcome string, code string) {
		m, err := nc.Request("shallot.v1."+subject, nil, long)
		require.NoError(t, err)
		return gjson.GetBytes(m.Data, "status").Str, gjson.GetBytes(m.Data, "outcome").Str, m.Header.Get("Shallot-Fault")
	}
	says := func(subject, status, outcome, code string) {
		t.Helper()
		for range 2 {
			gotStatus, gotOutcome, gotCode := cancel(subject)
			require.Equal(t, []string{status, outcome, code}, []string{gotStatus, gotOutcome, gotCode}, subject)
		}
	}
	says("tenant.other.cancel."+theirs, "", "", "not_found")
	says("tenant.other.cancel."+bound, "", "", "not_found")
	require.Empty(t, s.ended, "nothing of another tenant's is cancelled")
	says("tenant.acme.cancel."+stored, "cancelled", "", "")
	require.ErrorIs(t, got(t, s.ended, "the end of the work"), pipeline.ErrCancelled)
	says("cancel."+stored, "cancelled", "", "")
	says("cancel.none", "", "", "not_found")

	for subject, call := range map[string]string{"tenant.acme.cancel.": bound, "cancel.": alsoBound} {
		says(subject+call, "cancelled", "", "")
		require.ErrorIs(t, got(t, s.ended, "the end of the work"), pipeline.ErrCancelled)
	}
	close(s.release)
	require.NoError(t, got(t, s.ended, "the end of the work"))
	require.Eventually(t, func() bool {
		c, _, err := owner.Peek(t.Context(), "acme", theirs)
		return err == nil && c != nil
	}, long, 5*time.Millisecond)
	says("tenant.acme.cancel."+theirs, "ended", "completed", "")
	says("cancel."+theirs, "ended", "completed", "")
}
