package natsapi

import (
	"bytes"
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// Verb is a request subject <root>.v1.<Name>, and <root>.v1.tenant.<tenant>.<Name>.
type Verb struct {
	Name  string // tokens with dots: todo.get
	About string // one line for who lists endpoints
	// Request and Reply describe the bodies: a Form, or a value of the Go type that is read or written.
	Request, Reply any
	// Operators says that callers may not use it where the server that we run ourselves knows them.
	Operators bool
	// Serve returns a value, which is sent as JSON, or an error, which should be a *messages.Fault.
	Serve func(ctx context.Context, q Query) (any, error)
}

// Query is one request of a verb. The tenant is the subject's; on a bare subject it is "default".
type Query struct {
	Tenant  string
	Session string // header Shallot-Session
	By      string // who asks, for the audit
	Body    []byte
}

// verbTime is the time in which a verb must answer.
const verbTime = 10 * time.Second

// serveVerbs serves Options.Verbs.
func (s *Server) serveVerbs() error {
	for _, v := range s.Verbs {
		e := endpoint{about: v.About, request: v.Request, reply: v.Reply}
		if err := s.perTenant(e, v.Name, func(m *asked, tenant string) { s.serveVerb(m, tenant, v) }); err != nil {
			return err
		}
	}
	return nil
}

// control checks a body that is an object; a bare word or none may do too.
func control(body []byte) *messages.Fault {
	if t := bytes.TrimSpace(body); len(t) == 0 || t[0] != '{' {
		return nil
	}
	return api.ControlBody(body)
}

func (s *Server) serveVerb(m *asked, tenant string, v Verb) {
	if f := control(m.Data); f != nil {
		s.reply(m, refusal(m.Reply, f))
		return
	}
	ctx, cancel := context.WithTimeout(api.WithOrigin(context.Background(), "nats "+m.Subject), verbTime)
	defer cancel()
	out, err := v.Serve(ctx, Query{Tenant: tenant, Session: m.Header.Get("Shallot-Session"), By: by(m.Msg), Body: m.Data})
	if err != nil {
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
		return
	}
	s.reply(m, &nats.Msg{Subject: m.Reply, Data: rawjson.Encode(out)})
}
