package natsapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// asked is one request.
type asked struct {
	*nats.Msg
	failed error // the fault that was answered, if one was
}

// endpoint is what callers may ask for, as the service protocol shows it. Callers of one tenant have a subject of their
// own for it, so it may have several; they are counted together, and the first is shown.
type endpoint struct {
	name     string // letters, digits, - and _
	subjects []string
	about    string
	// request and reply describe the bodies: a Form, or a value of the Go type that is read or written. Nil: no body, or
	// any.
	request, reply any
}

// Form is a JSON Schema.
type Form string

// info is the endpoint for the service protocol.
func (e endpoint) info() (micro.EndpointInfo, error) {
	about := map[string]string{"description": e.about}
	if len(e.subjects) > 1 {
		about["tenant_subject"] = e.subjects[1]
	}
	for key, body := range map[string]any{"schema": e.request, "reply_schema": e.reply} {
		text, err := schemaOf(body, key == "schema")
		if err != nil {
			return micro.EndpointInfo{}, fmt.Errorf("natsapi: %s: the %s: %w", e.name, key, err)
		}
		if text != "" {
			about[key] = text
		}
	}
	return micro.EndpointInfo{Name: e.name, Subject: e.subjects[0], QueueGroup: entryGroup, Metadata: about}, nil
}

// anyJSON are the types that hold what others wrote.
var anyJSON = map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[json.RawMessage](): {}}

// schemaOf is the schema of a body. An unknown key of a request is refused; answers may have more in later versions.
func schemaOf(body any, closed bool) (string, error) {
	switch b := body.(type) {
	case nil:
		return "", nil
	case Form:
		return string(b), nil
	}
	s, err := jsonschema.ForType(reflect.TypeOf(body), &jsonschema.ForOptions{TypeSchemas: anyJSON})
	if err != nil {
		return "", err
	}
	if !closed {
		open(s)
	}
	text, err := json.Marshal(s)
	return string(text), err
}

// open lets objects have keys that the schema does not name.
func open(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		open(p)
	}
	open(s.Items)
	open(s.AdditionalProperties)
}

// subscribe serves an endpoint. Each request has its own goroutine, which Wait waits for.
func (s *Server) subscribe(e endpoint, serve func(m *asked)) error {
	info, err := e.info()
	if err != nil {
		return err
	}
	count := s.Calls.Endpoint(info)
	for _, subject := range e.subjects {
		sub, err := s.Conn.QueueSubscribe(subject, entryGroup, s.Calls.Answering(func(m *nats.Msg) {
			end := s.work.Begin()
			go func() {
				defer end()
				begin, a := time.Now(), &asked{Msg: m}
				defer func() { count(time.Since(begin), a.failed) }()
				if f := knownHeaders(m); f != nil {
					s.refuse(a, f)
					return
				}
				serve(a)
			}()
		}))
		if err != nil {
			return err
		}
		s.subs = append(s.subs, sub)
	}
	return nil
}

// knownHeaders refuses headers that mean something else than their sender thinks. The client gives a message whose
// headers it cannot read as one that has none: its size tells. Such a request may have had a key, or a deadline.
func knownHeaders(m *nats.Msg) *messages.Fault {
	if m.Header == nil && m.Size() > len(m.Subject)+len(m.Reply)+len(m.Data) {
		return api.Invalid("", "the headers of the message cannot be read; send NATS/1.0 and then lines of name: value")
	}
	return api.KnownHeaders(slices.Collect(maps.Keys(m.Header)), hdrWire)
}

// perTenant serves <root>.v1.<name> for the tenant "default", and <root>.v1.tenant.<tenant>.<name>. A name that ends
// with * is followed by one token more.
func (s *Server) perTenant(e endpoint, name string, serve func(m *asked, tenant string)) error {
	e.name = strings.ReplaceAll(strings.TrimSuffix(name, ".*"), ".", "-")
	e.subjects = s.bareToo(s.subjects.Control(name), s.subjects.Control("tenant", "*", name))
	return s.subscribe(e, func(m *asked) {
		tenant, own, ok := s.tenantOf(m)
		switch {
		case !ok:
			s.reply(m, refusal(m.Reply, noSubject(m.Subject)))
			return
		case !own:
			tenant = "default"
		}
		serve(m, tenant)
	})
}

// tenantOf is the tenant that a subject names; own is false for a bare subject, and ok for one that cannot be read.
func (s *Server) tenantOf(m *asked) (tenant string, own, ok bool) {
	rest, own := strings.CutPrefix(m.Subject, s.subjects.Control("tenant", ""))
	if !own {
		return "", false, true
	}
	token, _, _ := strings.Cut(rest, ".")
	tenant, ok = messages.Untoken(token)
	return tenant, true, ok && tenant != ""
}

// bareToo are the subjects of an endpoint: the bare one where it is served, and the one that names a tenant.
func (s *Server) bareToo(bare, own string) []string {
	if s.NoBareSubjects {
		return []string{own}
	}
	return []string{bare, own}
}

// note remembers a fault that is answered.
func (a *asked) note(out *nats.Msg) {
	if code := out.Header.Get(hdrErrCode); code != "" {
		a.failed = errors.New(code + " " + out.Header.Get(hdrErr))
	}
}
