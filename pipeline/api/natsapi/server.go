// Package natsapi serves Shallot to plain NATS callers: an OpenAI chat body or the arguments of a tool in, the reply out,
// no knowledge of the envelope needed.
package natsapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/inflight"
)

// entryGroup is the queue group of the processes with the entry role.
const entryGroup = "entry"

// Calls is what the server asks about calls; bus.Node is one.
type Calls interface {
	pipeline.Entry
	pipeline.Control
	// HeldRows lists the calls of a tenant that wait for an answer, the oldest first, each as JSON.
	HeldRows(ctx context.Context, tenant string) ([]json.RawMessage, error)
	// DecideInOneWord gives a call its answer and says in one word what that was. ErrHeld: nothing was decided.
	DecideInOneWord(ctx context.Context, tenant, call string, answer json.RawMessage, by string) (string, error)
	// Cancelled is told that somebody cancelled a call by a message.
	Cancelled(call string)
	// Answering wraps a handler so that nothing is done for a request whose reply subject is not an inbox.
	Answering(serve nats.MsgHandler) nats.MsgHandler
}

// Options say whom the server answers, and how far it believes them.
type Options struct {
	Conn *nats.Conn // the server does not close it
	Root string     // of all subjects
	Log  *slog.Logger
	// Calls is needed from Serve on, and may be set until then.
	Calls Calls
	// Verbs are further request subjects.
	Verbs []Verb
	// TrustTenantHeader, NoBareSubjects: see contracts 4.
	TrustTenantHeader bool
	NoBareSubjects    bool
	// TrustCallers gives callers the operator role: for an embedded server on loopback (contracts T3).
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

// subscribe serves a request subject; each request has a goroutine of its own that Wait waits for.
func (s *Server) subscribe(subject string, serve func(m *nats.Msg)) error {
	sub, err := s.Conn.QueueSubscribe(subject, entryGroup, s.Calls.Answering(func(m *nats.Msg) {
		end := s.work.Begin()
		go func() {
			defer end()
			if f := api.KnownHeaders(slices.Collect(maps.Keys(m.Header)), hdrWire); f != nil {
				s.refuse(m, f)
				return
			}
			serve(m)
		}()
	}))
	if err != nil {
		return err
	}
	s.subs = append(s.subs, sub)
	return nil
}

// Drain ends the subscriptions, when they have handed over what the client has received.
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

// drain lets a subscription hand over what the client has received, and ends it. Without a server there is nobody to
// confirm that nothing more comes, and nothing that could.
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

// GiveUp ends the waits for the ends of calls; the calls go on, and whoever ends them answers.
func (s *Server) GiveUp() { s.giveUp() }

// Answer sends the end of a call to the caller who waits at its inbox.
func (s *Server) Answer(c *messages.Call) {
	if !c.Stream {
		_ = s.Conn.PublishMsg(answer(c.Return.Caller, c))
		return
	}
	for _, m := range streamEnd(c.Return.Caller, followerOf(c.Kind, c.Request()), c, s.largest()) {
		_ = s.Conn.PublishMsg(m)
	}
}

// serveCancel lets one process end the wait of a call that somebody cancels by a message of his own.
func (s *Server) serveCancel() error {
	prefix := s.subjects.Control("cancel", "")
	return s.subscribe(s.subjects.Control("cancel", "*"), func(m *nats.Msg) {
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

// headerValue keeps a value readable and single-lined; NATS would turn CR and LF into blanks.
func headerValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
