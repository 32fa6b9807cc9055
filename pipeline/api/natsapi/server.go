// Package natsapi serves Shallot to plain NATS callers: an OpenAI chat body or the arguments of a tool in, the reply
// out. Callers need not know the envelope.
package natsapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/inflight"
)

// entryGroup is the queue group of the processes with the entry role.
const entryGroup = "entry"

// Calls is what the server asks about calls; bus.Node implements it.
type Calls interface {
	pipeline.Entry
	pipeline.Control
	// HeldRows lists the calls of a tenant that wait for an answer, the oldest first, each as JSON.
	HeldRows(ctx context.Context, tenant string) ([]json.RawMessage, error)
	// DecideInOneWord gives a call its answer and returns the decision in one word. ErrHeld means that nothing was
	// decided.
	DecideInOneWord(ctx context.Context, tenant, call string, answer json.RawMessage, by string) (string, error)
	// CancelCall cancels a call of a tenant, wherever it is, and says what came of it; an empty tenant is any.
	CancelCall(ctx context.Context, tenant, call string) (pipeline.Cancellation, error)
	// Unread keeps a message that is refused and has nobody to tell so.
	Unread(m *nats.Msg, why string)
	// Answering wraps a handler so that it ignores requests whose reply subject is not an inbox.
	Answering(serve nats.MsgHandler) nats.MsgHandler
	// Endpoint has the service protocol show what callers may ask for. count is to be told of each request: how long it
	// took, and the fault that it was answered with.
	Endpoint(e micro.EndpointInfo) (count func(took time.Duration, fault error))
}

// Options say whom the server answers and how far it trusts them.
type Options struct {
	Conn *nats.Conn // the server does not close it
	Root string     // of all subjects
	Log  *slog.Logger
	// Calls must be set before Serve.
	Calls Calls
	// Verbs are further request subjects.
	Verbs []Verb
	// TrustTenantHeader lets a bare subject name its tenant in Shallot-Tenant. NoBareSubjects closes the bare subjects,
	// so that NATS permissions alone decide the tenant.
	TrustTenantHeader bool
	NoBareSubjects    bool
	// Look is how often it is asked whether a caller still waits; 0: 4 s. One that left is noticed after twice that time.
	Look time.Duration
	// Beat is how often a caller of a stream hears something; 0: 5 s.
	Beat time.Duration
	// TrustCallers gives callers the operator role, for an embedded server on loopback.
	TrustCallers bool
}

// Server answers plain NATS requests from Serve until Drain.
type Server struct {
	Options
	subjects messages.Subjects
	subs     []*nats.Subscription
	waiting  context.Context // of requests that wait for the end of their call
	giveUp   context.CancelFunc
	work     inflight.Group
	looks    *looks // nil before Serve
}

// New makes a server that does not listen yet.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{Options: o, subjects: messages.Subjects{Root: o.Root}}
	s.waiting, s.giveUp = context.WithCancel(context.Background())
	return s
}

// Drain ends the subscriptions after the requests that the client has received were handed over.
func (s *Server) Drain() {
	var wait sync.WaitGroup
	for _, sub := range s.subs {
		wait.Go(func() {
			if err := drain(s.Conn, sub); err != nil {
				s.Log.Debug("a request subscription did not drain", "subject", sub.Subject, "err", err)
			}
		})
	}
	wait.Wait()
}

// drain ends a subscription after the client has handed over what it received. Without a connection to the server,
// nothing more can come and nothing can confirm it.
func drain(nc *nats.Conn, sub *nats.Subscription) error {
	if !nc.IsConnected() {
		return sub.Unsubscribe()
	}
	done := sub.StatusChanged(nats.SubscriptionClosed)
	if err := sub.Drain(); err != nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		return errors.New("timed out")
	}
	return nil
}

// Wait returns when no request is under way.
func (s *Server) Wait() { s.work.Wait() }

// GiveUp ends the waits for the ends of calls. The calls go on, and the process that ends them answers their callers.
func (s *Server) GiveUp() { s.giveUp() }

// Answer sends the end of a call to the caller that waits at its inbox.
func (s *Server) Answer(c *messages.Call) {
	if !c.Stream {
		_ = s.Conn.PublishMsg(answer(c.Return.Caller, c))
		return
	}
	out := s.stream(c.Kind, c.Return.Caller, c.ID, c.Request(), func(m *nats.Msg) { _ = s.Conn.PublishMsg(m) })
	out.last(streamEnd(c.Return.Caller, out, c, s.largest())...)
}

// serveCancel answers what came of a cancel. On the bare subject, which is for operators, all processes hear the
// message and cancel the call themselves; so do the programs of others that work for it.
func (s *Server) serveCancel() error {
	name, of := "cancel.*", s.subjects.Control("tenant", "*", "cancel", "*")
	e := endpoint{name: "cancel", subjects: []string{s.subjects.Control(name), of}, reply: pipeline.Cancellation{},
		about: "cancels the call of that id"}
	return s.subscribe(e, func(m *asked) {
		tenant, own, ok := s.tenantOf(m)
		call, known := messages.Untoken(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		if !ok || !known {
			s.reply(m, refusal(m.Reply, noSubject(m.Subject)))
			return
		}
		if !own && m.Reply == "" {
			return // it is done; most of these come from our own processes
		}
		ctx, cancel := context.WithTimeout(context.Background(), verbTime)
		defer cancel()
		out, err := s.Calls.CancelCall(ctx, tenant, call)
		if err != nil {
			s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
			return
		}
		s.reply(m, status(m.Reply, call, out.Status, out))
	})
}

// The headers that callers read.
const (
	hdrCall     = "Shallot-Call"
	hdrWire     = "Shallot-Wire"
	hdrDegraded = "Shallot-Degraded"
	hdrMsgID    = "Nats-Msg-Id"
	hdrErrCode  = "Nats-Service-Error-Code"
	hdrErr      = "Nats-Service-Error"
)

// headerValue keeps a value readable and on one line: NATS would turn CR and LF into blanks.
func headerValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
