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
	// Cancelled is called when a message cancels a call.
	Cancelled(call string)
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
	for _, m := range streamEnd(c.Return.Caller, followerOf(c.Kind, c.Request()), c, s.largest()) {
		_ = s.Conn.PublishMsg(m)
	}
}

// serveCancel lets one process end the wait of a call that a message cancels.
func (s *Server) serveCancel() error {
	prefix := s.subjects.Control("cancel", "")
	e := endpoint{name: "cancel", subjects: []string{prefix + "*"}, about: "cancels the call of that id"}
	return s.subscribe(e, func(m *asked) {
		if id, ok := messages.Untoken(m.Subject[len(prefix):]); ok {
			s.Calls.Cancelled(id)
		}
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
