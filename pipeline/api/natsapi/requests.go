package natsapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// Serve subscribes to the request subjects that plain NATS callers use. They are core subjects, which no stream
// captures: a request that nobody takes must fail at once instead of being stored.
func (s *Server) Serve() error {
	result := endpoint{about: "the end of a durable call, or that it still runs"}
	echo := endpoint{name: "echo", subjects: []string{s.subjects.Control("echo")}, about: "answers with what it got"}
	var err error
	if s.looks, err = newLooks(s.Conn, s.Look); err != nil {
		return err
	}
	return errors.Join(s.serveRequests(),
		s.perTenant(result, "result.*", s.serveResult),
		s.subscribe(echo, func(m *asked) { _ = m.Respond(m.Data) }),
		s.serveApprovals(), s.serveCancel(), s.serveVerbs(), s.serveControl())
}

// serveRequests serves the calls themselves.
func (s *Server) serveRequests() error {
	kinds := map[messages.Kind]endpoint{
		messages.Model: {about: "a model call", request: chatForm, reply: replyForm},
		messages.Tool:  {about: "a call of the tool that the last token names", request: argumentsForm},
		messages.Agent: {about: "a run of an agent", request: runForm, reply: replyForm},
	}
	for kind, e := range kinds {
		e.name = string(kind)
		now := s.bareToo(s.subjects.Request(kind), s.subjects.TenantRequest("*", kind))
		later := s.bareToo(s.subjects.Submit(kind), s.subjects.TenantSubmit("*", kind))
		if err := s.serveBoth(e, now, later); err != nil {
			return err
		}
	}
	named := endpoint{name: "agent-named", about: "a run of the agent that the last token names",
		request: runForm, reply: replyForm}
	return s.serveBoth(named, s.bareToo(s.subjects.AgentRequest("", "*"), s.subjects.AgentRequest("*", "*")),
		s.bareToo(s.subjects.AgentSubmit("", "*"), s.subjects.AgentSubmit("*", "*")))
}

// serveBoth serves an endpoint whose caller waits, and the same for one who does not.
func (s *Server) serveBoth(e endpoint, now, later []string) error {
	submit := endpoint{name: e.name + "-submit", subjects: later, request: e.request, reply: submitted{},
		about: e.about + ", stored; the answer is its id"}
	e.name, e.subjects = e.name+"-request", now
	return errors.Join(s.subscribe(e, s.serveRequest), s.subscribe(submit, s.serveRequest))
}

// errLeft says that nobody listens to a caller's inbox any more.
var errLeft = errors.New("the caller left")

// submitted is the answer to a call that is stored.
type submitted struct {
	Call   string `json:"call"`
	Status string `json:"status"`
	Result string `json:"result"` // the subject to ask for its end
	// Stream is where the call is stored. With it a JetStream publisher takes the answer for the acknowledgement that it
	// is.
	Stream string `json:"stream"`
}

// callsStream is where calls are stored.
const callsStream = "SHALLOT_CALLS"

func (s *Server) serveRequest(m *asked) {
	in, ok := s.subjects.ParseIntake(m.Subject)
	if !ok {
		s.reply(m, refusal(m.Reply, noSubject(m.Subject)))
		return
	}
	begin := time.Now()
	r, err := s.readRequest(in, m.Msg)
	if err != nil {
		s.refuse(m, err)
		s.line(m, begin, r, "", slog.String("fault", string(messages.AsFault(err, "entry").Code)))
		return
	}
	p, err := s.Calls.Accept(context.WithoutCancel(s.waiting), r)
	if err != nil {
		s.refuse(m, err)
		s.line(m, begin, r, "", slog.String("fault", string(messages.AsFault(err, "entry").Code)))
		return
	}
	if in.Submit {
		s.line(m, begin, r, p.ID(), slog.String("status", "accepted"))
		s.reply(m, status(m.Reply, p.ID(), "accepted", submitted{p.ID(), "accepted",
			s.resultSubject(in, r.Tenant, p.ID()), callsStream}))
		return
	}
	ctx, gone := context.WithCancelCause(s.waiting)
	defer gone(nil)
	if m.Reply != "" {
		defer s.looks.at(m.Reply, func() { p.Leave(); gone(errLeft) })()
	}
	c, err := s.serveWait(ctx, m, r, p)
	switch {
	case err == nil:
		s.line(m, begin, r, p.ID(), api.LogLine(c)...)
	case errors.Is(err, pipeline.ErrHeld):
		s.line(m, begin, r, p.ID(), slog.String("status", "approval_pending"))
	case errors.Is(context.Cause(ctx), errLeft):
		s.line(m, begin, r, p.ID(), slog.String("status", "its caller left"))
	default:
		s.line(m, begin, r, p.ID(), slog.String("status", "goes on elsewhere"))
	}
}

// line writes the one line of the log about a request and the call that it made.
func (s *Server) line(m *asked, begin time.Time, r pipeline.Request, call string, ended ...slog.Attr) {
	said := []slog.Attr{slog.String("subject", m.Subject), slog.Int64("dur_ms", time.Since(begin).Milliseconds()),
		slog.String("request_id", r.RequestID), slog.String("call", call), slog.String("tenant", r.Tenant)}
	s.Log.LogAttrs(context.Background(), slog.LevelInfo, "nats", append(said, ended...)...)
}

// resultSubject is the subject to ask for the result of a submitted call. The bare one serves only the calls of the
// tenant "default"; a caller on a tenant's subject may have no permission for others.
func (s *Server) resultSubject(in messages.Intake, tenant, id string) string {
	if in.Tenant == "" && tenant == "default" {
		return s.subjects.Result(id)
	}
	return s.subjects.Control("tenant", messages.Token(tenant), "result", messages.Token(id))
}

// noSubject refuses a subject that cannot be read.
func noSubject(subject string) *messages.Fault {
	return messages.NewFault(messages.InvalidRequest,
		"subject %s cannot be read: in the name of a tenant, tool or call, write every byte other than letters, digits, "+
			"_ and - as =HH, two hex digits", subject)
}

// refuse answers a request that is not accepted. A caller that asked for a stream reads until the empty message, so
// that is sent too.
func (s *Server) refuse(m *asked, err error) {
	s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
	in, ok := s.subjects.ParseIntake(m.Subject)
	if !ok {
		return
	}
	if m.Reply == "" { // nobody hears it
		s.Calls.Unread(m.Msg, messages.AsFault(err, "entry").Message)
	}
	raw, _ := rawjson.Field(m.Data, "stream")
	tool := in.Kind == messages.Tool
	if tool && m.Header.Get(api.HeaderStream) == "on" || !tool && string(raw) == "true" {
		s.reply(m, &nats.Msg{Subject: m.Reply})
	}
}

// serveWait answers a plain request and returns the end of its call. A streamed reply is one message for each chunk,
// and an empty one at the end.
func (s *Server) serveWait(ctx context.Context, m *asked, r pipeline.Request, p pipeline.Pending) (*messages.Call,
	error) {
	if !r.Stream {
		c, err := p.Wait(ctx, nil)
		switch {
		case err == nil:
			s.reply(m, answer(m.Reply, c))
		case errors.Is(err, pipeline.ErrHeld):
			s.reply(m, pendingAnswer(m.Reply, p.ID()))
		}
		return c, err
	}
	out := s.stream(r.Kind, m.Reply, p.ID(), r.Body, func(out *nats.Msg) { s.reply(m, out) })
	out.beat = heartbeat(r.Kind, p.ID(), r.Body)
	out.begin()
	defer out.cut()
	c, err := p.Wait(ctx, out.delta)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		held := pendingAnswer(m.Reply, p.ID())
		out.last(held, &nats.Msg{Subject: m.Reply, Header: held.Header}) // the empty end has the same status
		return nil, err
	case err != nil:
		return nil, err
	}
	out.last(streamEnd(m.Reply, out, c, s.largest())...)
	return c, nil
}

// stream is a streamed reply to an inbox.
func (s *Server) stream(kind messages.Kind, to, call string, request []byte, send func(*nats.Msg)) *streamed {
	return &streamed{follower: followerOf(kind, request), to: to, call: call, largest: s.largest(), send: send,
		every: cmp.Or(s.Beat, beatEvery)}
}

// largest is how many bytes of data fit into a message beside its headers.
func (s *Server) largest() int { return int(s.Conn.MaxPayload()) - 8<<10 }

// reply sends an answer to a caller that gave a reply subject.
func (s *Server) reply(m *asked, out *nats.Msg) {
	if m.Reply == "" {
		return
	}
	if len(out.Data) > s.largest() {
		out = refusal(m.Reply, messages.NewFault(messages.TooLarge,
			"the reply of %d bytes does not fit into a NATS message of %d; "+
				"ask for it with stream, over HTTP, or raise max_payload", len(out.Data), s.Conn.MaxPayload()))
	}
	m.note(out)
	if err := s.Conn.PublishMsg(out); err != nil {
		s.Log.Debug("a caller was not answered", "subject", out.Subject, "err", err)
	}
}

func (s *Server) serveResult(m *asked, tenant string) {
	id, ok := messages.Untoken(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if !ok {
		s.reply(m, refusal(m.Reply, noSubject(m.Subject)))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := s.Calls.Result(ctx, tenant, id)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		s.reply(m, pendingAnswer(m.Reply, id))
	case err != nil:
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
	case c == nil:
		s.reply(m, status(m.Reply, id, "running", map[string]string{"status": "running"}))
	default:
		s.reply(m, answer(m.Reply, c))
	}
}

// readRequest reads the metadata of a plain request from its headers, by the same rules as HTTP.
func (s *Server) readRequest(in messages.Intake, m *nats.Msg) (pipeline.Request, error) {
	id := api.Identity{Tenant: in.Tenant, Role: api.RoleCaller}
	if s.TrustCallers {
		id.Role = api.RoleOperator
	}
	if id.Tenant == "" {
		id.Tenant = "default"
		if v := m.Header["Shallot-Tenant"]; s.TrustTenantHeader && len(v) == 1 && v[0] != "" {
			id.Tenant = v[0]
		}
	}
	var chat api.Chat
	body := m.Data
	switch in.Kind {
	case messages.Model:
		var f *messages.Fault
		if chat, f = api.ParseChat(body); f != nil {
			return pipeline.Request{}, f
		}
	case messages.Agent:
		var f *messages.Fault
		if in.Agent, f = agentOf(in, m); f != nil {
			return pipeline.Request{}, f
		}
		run, f := api.ParseRun(in.Agent, body)
		if f != nil {
			return pipeline.Request{}, f
		}
		chat, body = run.Chat, run.Body
	case messages.Tool:
		if f := api.ReadArguments(body); f != nil {
			return pipeline.Request{}, f
		}
		body = api.Arguments(body)
	}
	if v := m.Header[hdrWire]; len(v) > 0 && v[0] != strconv.Itoa(messages.WireVersion) {
		return pipeline.Request{}, messages.NewFault(messages.UnsupportedVersion,
			"header %s is %q; this build reads version %d", hdrWire, v[0], messages.WireVersion)
	}
	headers := func(name string) []string {
		if name == "Shallot-Tenant" || name == hdrWire {
			return nil // the subject says the tenant, and the wire version was checked above
		}
		return anyCase(m.Header, name)
	}
	r, f := api.Metadata(headers, id, chat, time.Now())
	if f == nil && r.IdempotencyKey == "" {
		r.IdempotencyKey, f = api.OneValue(headers, hdrMsgID)
	}
	if f != nil {
		return r, f
	}
	if in.Kind == messages.Tool {
		if r.Stream, f = api.WantsStream(headers); f != nil {
			return r, f
		}
	}
	if in.Kind == messages.Agent {
		if r.Agent = in.Agent; r.Agent == "" {
			return r, api.Invalid("model", "name the agent: the last token of the subject, the model agent/<name>, or the "+
				"header Shallot-Agent")
		}
	}
	r.Kind, r.Tool, r.Submit, r.Body, r.CallerInbox = in.Kind, in.Tool, in.Submit, body, m.Reply
	r.Stream = r.Stream && !r.Submit // a submitted call has no reader, so it may be retried like any other
	return r, nil
}

// agentOf is the agent that a request names: in its subject, in its header, or as the model; empty: in none. One that
// is named twice must be the same: permissions hold for the subject, so nothing beside it may choose another.
func agentOf(in messages.Intake, m *nats.Msg) (string, *messages.Fault) {
	model, _ := rawjson.FieldString(m.Data, "model")
	names := []string{in.Agent}
	if v := anyCase(m.Header, "Shallot-Agent"); len(v) == 1 {
		names = append(names, v[0])
	}
	of, said := strings.CutPrefix(model, "agent/")
	if said || in.Agent == "" && len(names) == 1 {
		names = append(names, of)
	}
	names = slices.Compact(slices.DeleteFunc(names, func(name string) bool { return name == "" }))
	switch len(names) {
	case 0:
		return "", nil
	case 1:
		return names[0], nil
	}
	return "", api.Invalid("model", "the request names agent %s and agent %s; name one", names[0], names[1])
}

// anyCase returns a header's values in whatever case its name is spelled: NATS keeps the case of names as sent, and an
// idempotency key must not be lost by a small letter.
func anyCase(h nats.Header, name string) []string {
	values := h[name]
	for k, v := range h {
		if k != name && strings.EqualFold(k, name) {
			values = append(values[:len(values):len(values)], v...)
		}
	}
	return values
}

// answer is the end of a call as a NATS message: the reply or the error body, with the answer headers.
func answer(subject string, c *messages.Call) *nats.Msg {
	m := &nats.Msg{Subject: subject, Header: nats.Header{}}
	if c.Fault != nil {
		m = refusal(subject, c.Fault)
	} else if text, ok := c.ReplyText(); ok {
		m.Data = []byte(text)
	} else {
		m.Data = c.Reply()
	}
	for k, v := range api.ResponseHeaders(c, time.Now()) {
		m.Header[k] = []string{headerValue(v)}
	}
	return m
}

// refusal is a fault as a NATS message, in the form of the service protocol.
func refusal(subject string, f *messages.Fault) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: f.Body(), Header: nats.Header{
		hdrErrCode: {strconv.Itoa(f.HTTPStatus())}, hdrErr: {headerValue(f.Message)},
	}}
	for k, v := range api.FaultHeaders(f) {
		m.Header[k] = []string{headerValue(v)}
	}
	return m
}

// pendingAnswer says that a call is parked until somebody answers its question.
func pendingAnswer(subject, id string) *nats.Msg {
	return status(subject, id, "pending", map[string]string{"call": id, "status": "approval_pending"})
}

// status is an answer about a call that is not its end.
func status(subject, call, status string, body any) *nats.Msg {
	header := nats.Header{"Shallot-Status": {status}, hdrCall: {call}}
	return &nats.Msg{Subject: subject, Header: header, Data: rawjson.Encode(body)}
}
