package bus

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// stock is a server with processes that own stored calls and run them through an onion of the test.
type stock struct {
	t   *testing.T
	srv *embed.Server
	url string // where processes connect; empty: in process
	cfg Config
	log *slog.Logger
	js  jetstream.JetStream
	nc  *nats.Conn
}

func newStock(t *testing.T, cfg Config) *stock { return newStockOn(t, cfg, embed.Options{}) }

func newStockOn(t *testing.T, cfg Config, o embed.Options) *stock {
	t.Helper()
	o.Dir, o.Sync = t.TempDir(), time.Minute
	srv, err := embed.Start(o)
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	cfg.ModelClasses, cfg.ToolClasses = []string{"default"}, []string{"default"}
	if cfg.AckWait == 0 {
		cfg.AckWait = 3 * time.Second
	}
	if cfg.AfterOutage == 0 {
		cfg.AfterOutage = 300 * time.Millisecond // a start counts as an outage, and nobody is coming back here
	}
	s := &stock{t: t, srv: srv, cfg: cfg.withDefaults(), log: slog.New(slog.DiscardHandler)}
	if os.Getenv("SHALLOT_TEST_LOG") != "" {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s.nc, err = nats.Connect("", nats.InProcessServer(srv))
	require.NoError(t, err)
	t.Cleanup(s.nc.Close)
	s.js, err = jetstream.New(s.nc)
	require.NoError(t, err)
	require.NoError(t, Provision(t.Context(), s.js, s.cfg))
	return s
}

// through is an onion of a test: what becomes of a call in a process.
type through func(p *ownerProcess, o *owned, told func(end *messages.Call)) outcome

// ownerProcess is what a Node is to its stored calls.
type ownerProcess struct {
	machine
	durables *durables
	name     string
	own      *protocol.Owner
	nc       *nats.Conn
	calls    running
	die      context.CancelFunc
	dead     context.Context
	ticks    sync.WaitGroup
	tasks    tally
	probe    func(e *protocol.Effect)
}

// process starts a process. A caller only accepts, an owner runs calls too.
func (s *stock) process(entry bool, run through) *ownerProcess {
	s.t.Helper()
	p := &ownerProcess{name: "p" + secret(4)}
	p.dead, p.die = context.WithCancel(context.Background())
	p.own = protocol.NewOwner(p.name, protocol.Config{AckWait: s.cfg.AckWait, AfterOutage: s.cfg.AfterOutage})
	p.clock, p.beat, p.carry = newClock(), p.own.Beat, p.carryOut
	opts := []nats.Option{nats.ReconnectBufSize(-1), nats.PingInterval(2 * time.Second), nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond), nats.Name(p.name), nats.Timeout(20 * time.Second),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { p.Lock(); p.own.Down(); p.Unlock() }),
		nats.ReconnectHandler(func(*nats.Conn) { p.up() })}
	if s.url == "" {
		opts = append(opts, nats.InProcessServer(s.srv))
	}
	var err error
	p.nc, err = nats.Connect(s.url, opts...)
	require.NoError(s.t, err)
	js, err := jetstream.New(p.nc)
	require.NoError(s.t, err)
	objects, err := js.ObjectStore(s.t.Context(), jet.BodiesObjects)
	require.NoError(s.t, err)
	c := newCodec(objects, s.cfg.ClaimCheck, int(p.nc.MaxPayload()))
	reply := messages.Subjects{}.Reply(p.name, secret(16))
	p.durables, err = newDurables(s.t.Context(), durableOptions{
		mayHaveRun: func(context.Context, string, string) (bool, error) { return false, nil },

		name: p.name, inbox: reply + "." + storedReplies, cfg: s.cfg, nc: p.nc, js: js,
		log: s.log.With("process", p.name), codec: c, entry: entry,
		calls: &p.calls, fold: func(messages.Kind, messages.Slip) {}, callers: noCallers{},
		outbox: newOutbox(&p.tasks),
		decide: func(f func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect) {
			p.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return f(p.own, now, out) })
		},
		classify: func(*messages.Call) (string, error) { return "default", nil },
		through:  func(o *owned, told func(end *messages.Call)) outcome { return run(p, o, told) },
	})
	require.NoError(s.t, err)
	_, err = p.nc.Subscribe(reply+".>", func(m *nats.Msg) {
		if m.Subject != reply+".p" {
			p.durables.heard(m)
			return
		}
		sent, err := strconv.ParseInt(string(m.Data), 10, 64)
		if err == nil {
			p.do(func(_ time.Duration, out []protocol.Effect) []protocol.Effect {
				p.own.Hearing.Probed(time.Duration(sent))
				return out
			})
			p.durables.heardItself()
		}
	})
	require.NoError(s.t, err)
	p.probe = func(e *protocol.Effect) { _ = p.nc.Publish(reply+".p", strconv.AppendInt(nil, int64(e.At), 10)) }
	require.NoError(s.t, p.durables.start(s.t.Context()))
	p.up()
	p.ticks.Go(func() {
		every(p.dead, 50*time.Millisecond, func() { p.do(p.own.Tick) })
	})
	s.t.Cleanup(p.kill)
	return p
}

func (p *ownerProcess) up() {
	p.do(p.own.Up)
	p.durables.up()
}

func (p *ownerProcess) carryOut(e *protocol.Effect) {
	switch e.Kind {
	case protocol.Probe:
		p.probe(e)
	case protocol.Ping:
	case protocol.Wake:
		if o := p.calls.get(e.Call); o != nil {
			o.mail.post(letter{why: e.Why, n: e.N, record: e.Record})
		}
		p.durables.carry(*e)
	default:
		p.durables.carry(*e)
	}
}

// kill ends the process as SIGKILL does: nothing more leaves it.
func (p *ownerProcess) kill() {
	p.nc.Close()
	p.die()
	p.ticks.Wait()
	p.durables.end()
}

// call is a new call as the entry makes one.
func (s *stock) call(key string, body string) *messages.Call {
	c := messages.NewCall(messages.Model, "default", []byte(body))
	c.Deadline = time.Now().Add(time.Minute).UTC()
	c.IdempotencyKey, c.Fingerprint = key, body
	c.Slip.At = -1
	return c
}

// echo ends a call with its request.
func echo(_ *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
	o.call.SetReply([]byte(`{"echo":` + string(o.call.Request()) + `}`))
	return ended
}

// settled waits until nothing of any call is left in the queue.
func (s *stock) settled() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		st, err := s.js.Stream(s.t.Context(), "SHALLOT_CALLS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	}, 30*time.Second, 20*time.Millisecond, "the work queue is empty")
}

func (s *stock) wait(p pipeline.Pending) *messages.Call {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	c, err := p.Wait(ctx, nil)
	require.NoError(s.t, err)
	return c
}
