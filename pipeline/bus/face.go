package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/intake"
)

// entryGroup is the queue group of the processes with the entry role.
const entryGroup = "entry"

// serveFaces subscribes to the request subjects that plain NATS callers use: an OpenAI chat body in, the reply out,
// no knowledge of the envelope needed. They are core subjects; no stream captures them (contracts 26).
func (n *Node) serveFaces() error {
	var subjects []string
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		subjects = append(subjects, n.subj.TenantRequest("*", kind), n.subj.TenantSubmit("*", kind))
		if !n.opts.NoBareSubjects {
			subjects = append(subjects, n.subj.Request(kind), n.subj.Submit(kind))
		}
	}
	for _, s := range subjects {
		if err := n.face(s, n.serveRequest); err != nil {
			return err
		}
	}
	if err := n.face(n.subj.Control("result", "*"), func(m *nats.Msg) {
		n.serveResult(m, "default", m.Subject[len(n.subj.Control("result", "")):])
	}); err != nil {
		return err
	}
	if err := n.face(n.subj.Control("tenant", "*", "result", "*"), func(m *nats.Msg) {
		t := strings.Split(m.Subject, ".")
		tenant, ok := messages.Untoken(t[len(t)-3])
		if !ok {
			n.reply(m, refusal(m.Reply, noSubject(m.Subject)))
			return
		}
		n.serveResult(m, tenant, t[len(t)-1])
	}); err != nil {
		return err
	}
	if err := n.face(n.subj.Control("echo"), func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		return err
	}
	if err := n.serveApprovals(); err != nil {
		return err
	}
	if err := n.serveCancel(); err != nil {
		return err
	}
	if err := n.serveVerbs(); err != nil {
		return err
	}
	return n.serveControl()
}

// face subscribes to a request subject; each request has a goroutine of its own that Stop waits for.
func (n *Node) face(subject string, serve func(m *nats.Msg)) error {
	sub, err := n.nc.QueueSubscribe(subject, entryGroup, n.Answering(func(m *nats.Msg) {
		n.work.Go(func() { serve(m) })
	}))
	if err != nil {
		return err
	}
	n.faces = append(n.faces, sub)
	return nil
}

func (n *Node) stopFaces() {
	var wait sync.WaitGroup
	for _, s := range n.faces {
		wait.Go(func() {
			if err := drain(n.nc, s); err != nil {
				n.log.Debug("a request subscription did not drain", "subject", s.Subject, "err", err)
			}
		})
	}
	wait.Wait()
}

func (n *Node) serveRequest(m *nats.Msg) {
	in, ok := n.subj.ParseIntake(m.Subject)
	if !ok {
		n.reply(m, refusal(m.Reply, noSubject(m.Subject)))
		return
	}
	r, err := n.readRequest(in, m)
	if err != nil {
		n.refuse(in, m, err)
		return
	}
	ctx := n.facing
	p, err := n.Accept(context.WithoutCancel(ctx), r)
	if err != nil {
		n.refuse(in, m, err)
		return
	}
	if in.Submit {
		out := &nats.Msg{Subject: m.Reply, Header: nats.Header{"Shallot-Status": {"accepted"}, hdrCall: {p.ID()}}, Data: messages.Encode(struct {
			Call   string `json:"call"`
			Status string `json:"status"`
			Result string `json:"result"`
		}{p.ID(), "accepted", n.resultSubject(in, r.Tenant, p.ID())})}
		n.reply(m, out)
		return
	}
	n.serveWait(ctx, m, r, p)
}

// resultSubject is where the result of a submitted call is asked for. The bare subject knows the calls of the tenant
// default only; whoever called on a tenant's subject may be allowed no other.
func (n *Node) resultSubject(in messages.Intake, tenant, id string) string {
	if in.Tenant == "" && tenant == "default" {
		return n.subj.Result(id)
	}
	return n.subj.Control("tenant", messages.Token(tenant), "result", messages.Token(id))
}

// noSubject refuses a subject that cannot be read.
func noSubject(subject string) *messages.Fault {
	return messages.NewFault(messages.InvalidRequest,
		"subject %s cannot be read: in the name of a tenant, tool or call every byte but letters, digits, _ and - is written =HH, two hex digits", subject)
}

// refuse answers a request that is not accepted. Who asked for a stream reads until the empty message, so it ends with
// one here too.
func (n *Node) refuse(in messages.Intake, m *nats.Msg, err error) {
	n.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
	raw, _ := messages.Field(m.Data, "stream")
	if in.Kind == messages.Tool && m.Header.Get(intake.HeaderStream) == "on" || in.Kind != messages.Tool && string(raw) == "true" {
		n.reply(m, &nats.Msg{Subject: m.Reply})
	}
}

// serveWait answers a plain request. A streamed reply is one message for each chunk and an empty one at the end.
func (n *Node) serveWait(ctx context.Context, m *nats.Msg, r pipeline.Request, p pipeline.Pending) {
	if !r.Stream {
		c, err := p.Wait(ctx, nil)
		switch {
		case err == nil:
			n.reply(m, answer(m.Reply, c))
		case errors.Is(err, pipeline.ErrHeld):
			n.reply(m, pendingAnswer(m.Reply, p.ID()))
		}
		return
	}
	follow := followerOf(r.Kind, r.Body)
	c, err := p.Wait(ctx, func(d pipeline.Delta) {
		if follow.Released() {
			d.Degraded = ""
		}
		for _, out := range streamMessages(m.Reply, follow.Delta(d), d.Degraded, n.largest()) {
			n.reply(m, out)
		}
	})
	if errors.Is(err, pipeline.ErrHeld) {
		last := pendingAnswer(m.Reply, p.ID())
		n.reply(m, last)
		n.reply(m, &nats.Msg{Subject: m.Reply, Header: last.Header}) // its end says so too: data is no piece of a result
		return
	}
	if err != nil {
		return
	}
	for _, out := range streamEnd(m.Reply, follow, c, n.largest()) {
		n.reply(m, out)
	}
}

// largest is how many bytes of data fit into a message beside its headers.
func (n *Node) largest() int { return int(n.nc.MaxPayload()) - 8<<10 }

// reply sends to a caller, if he gave an address.
func (n *Node) reply(m *nats.Msg, out *nats.Msg) {
	if m.Reply == "" {
		return
	}
	if len(out.Data) > n.largest() {
		out = refusal(m.Reply, messages.NewFault(messages.TooLarge,
			"the reply of %d bytes does not fit into a NATS message of %d; ask for it with stream, over HTTP, or raise max_payload", len(out.Data), n.nc.MaxPayload()))
	}
	if err := n.nc.PublishMsg(out); err != nil {
		n.log.Debug("a caller was not answered", "subject", out.Subject, "err", err)
	}
}

func (n *Node) serveResult(m *nats.Msg, tenant, token string) {
	id, ok := messages.Untoken(token)
	if !ok {
		n.reply(m, refusal(m.Reply, noSubject(m.Subject)))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := n.Result(ctx, tenant, id)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		n.reply(m, pendingAnswer(m.Reply, id))
	case err != nil:
		n.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
	case c == nil:
		n.reply(m, &nats.Msg{Subject: m.Reply, Header: nats.Header{"Shallot-Status": {"running"}, hdrCall: {id}}, Data: []byte(`{"status":"running"}`)})
	default:
		n.reply(m, answer(m.Reply, c))
	}
}

// readRequest reads the metadata of contracts T3 from the headers of a plain request, by the same rules as HTTP.
func (n *Node) readRequest(in messages.Intake, m *nats.Msg) (pipeline.Request, error) {
	id := intake.Identity{Tenant: in.Tenant, Role: intake.RoleCaller}
	if n.opts.TrustCallers {
		id.Role = intake.RoleOperator
	}
	if id.Tenant == "" {
		id.Tenant = "default"
		if v := m.Header["Shallot-Tenant"]; n.opts.TrustTenantHeader && len(v) == 1 && v[0] != "" {
			id.Tenant = v[0]
		}
	}
	var chat intake.Chat
	body := m.Data
	switch in.Kind {
	case messages.Model:
		var f *messages.Fault
		if chat, f = intake.ReadChat(body); f != nil {
			return pipeline.Request{}, f
		}
	case messages.Tool:
		if f := intake.ReadArguments(body); f != nil {
			return pipeline.Request{}, f
		}
		body = intake.Arguments(body)
	}
	if v := m.Header[hdrWire]; len(v) > 0 && v[0] != strconv.Itoa(messages.WireVersion) {
		return pipeline.Request{}, messages.NewFault(messages.UnsupportedVersion, "header %s is %q; this build reads version %d", hdrWire, v[0], messages.WireVersion)
	}
	headers := func(name string) []string {
		if name == "Shallot-Tenant" || name == hdrWire {
			return nil // the subject says whose it is (contracts 4); a wire version is no secret of ours
		}
		return anyCase(m.Header, name)
	}
	r, f := intake.Metadata(headers, id, chat, time.Now())
	if f == nil && r.IdempotencyKey == "" {
		r.IdempotencyKey, f = intake.OneValue(headers, hdrMsgID)
	}
	if f != nil {
		return r, f
	}
	if in.Kind == messages.Tool {
		if r.Stream, f = intake.WantsStream(headers); f != nil {
			return r, f
		}
	}
	r.Kind, r.Tool, r.Submit, r.Body, r.CallerInbox = in.Kind, in.Tool, in.Submit, body, m.Reply
	r.Stream = r.Stream && !r.Submit // nobody reads: what fails may still be tried again
	return r, nil
}

// anyCase returns a header's values however its name is spelled: NATS keeps the letters of names as they are sent, and
// an idempotency key must not be lost by a small letter.
func anyCase(h nats.Header, name string) []string {
	values := h[name]
	for k, v := range h {
		if k != name && strings.EqualFold(k, name) {
			values = append(values[:len(values):len(values)], v...)
		}
	}
	return values
}

// answer is the end of a call as a NATS message: the reply or the error body, and the answer headers of contracts T3.
func answer(subject string, c *messages.Call) *nats.Msg {
	m := &nats.Msg{Subject: subject, Header: nats.Header{}}
	if c.Fault != nil {
		m = refusal(subject, c.Fault)
	} else if text, ok := c.ReplyText(); ok {
		m.Data = []byte(text)
	} else {
		m.Data = c.ReplyBytes()
	}
	for k, v := range intake.AnswerFacts(c, time.Now()) {
		m.Header[k] = []string{headerValue(v)}
	}
	return m
}

// refusal is a fault as a NATS message, as the service protocol writes errors.
func refusal(subject string, f *messages.Fault) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: f.Body(), Header: nats.Header{
		hdrErrCode: {strconv.Itoa(f.HTTPStatus())}, hdrErr: {headerValue(f.Message)},
	}}
	for k, v := range intake.FaultFacts(f) {
		m.Header[k] = []string{headerValue(v)}
	}
	return m
}

// pendingAnswer says that a call is parked until somebody answers (contracts 9).
func pendingAnswer(subject, id string) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{"Shallot-Status": {"pending"}, hdrCall: {id}},
		Data: messages.Encode(map[string]string{"call": id, "status": "approval_pending"})}
}
