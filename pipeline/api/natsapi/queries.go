package natsapi

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Verb is a request subject <root>.v1.<Name>, and <root>.v1.tenant.<tenant>.<Name>.
type Verb struct {
	Name string // tokens with dots: todo.get
	// Operators says that callers may not use it where the server that we run ourselves knows them.
	Operators bool
	// Serve answers with a value that is sent as JSON, or with an error, a *messages.Fault if it is one.
	Serve func(ctx context.Context, q Query) (any, error)
}

// Query is one request of a verb. The tenant is the subject's, "default" on a bare one (contracts 4).
type Query struct {
	Tenant  string
	Session string // header Shallot-Session
	Body    []byte
}

// verbTime bounds the answer to one verb.
const verbTime = 10 * time.Second

// serveVerbs subscribes to the subjects of Options.Verbs, bare and with a tenant.
func (s *Server) serveVerbs() error {
	for _, v := range s.Verbs {
		name := strings.Split(v.Name, ".")
		if !s.NoBareSubjects {
			if err := s.subscribe(s.subjects.Control(name...), func(m *nats.Msg) { s.serveVerb(m, "default", v) }); err != nil {
				return err
			}
		}
		own := s.subjects.Control(append([]string{"tenant", "*"}, name...)...)
		if err := s.subscribe(own, func(m *nats.Msg) {
			t := strings.Split(m.Subject, ".")
			tenant, ok := messages.Untoken(t[len(t)-len(name)-1])
			if !ok || tenant == "" {
				s.reply(m, refusal(m.Reply, messages.NewFault(messages.InvalidRequest, "subject %s names no tenant", m.Subject)))
				return
			}
			s.serveVerb(m, tenant, v)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) serveVerb(m *nats.Msg, tenant string, v Verb) {
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	out, err := v.Serve(ctx, Query{Tenant: tenant, Session: m.Header.Get("Shallot-Session"), Body: m.Data})
	if err != nil {
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
		return
	}
	s.reply(m, &nats.Msg{Subject: m.Reply, Data: rawjson.Encode(out)})
}
