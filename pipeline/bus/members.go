package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// member is the half of a node that serves stages and targets.
type member struct {
	*machine // guards m, owners, jobs
	n        *Node
	m        *protocol.Member
	owners   map[string]string // where each owner hears, by its name
	jobs     map[protocol.Work]*job
	open     map[question]context.CancelCauseFunc // questions in hand
	classes  map[string]*class
	pools    []*pool
	alone    chan struct{} // one slot: questions of which others died run one at a time
	busy     tally         // questions and jobs in hand
	outbox   *outbox       // of streamed replies
	said     atomic.Int64  // bytes of what jobs have said
}

func (n *Node) makeMember() {
	m := &member{n: n, m: protocol.NewMember(n.opts.Name, n.protocolConfig()), owners: map[string]string{},
		jobs: map[protocol.Work]*job{}, open: map[question]context.CancelCauseFunc{}, classes: map[string]*class{},
		alone: make(chan struct{}, 1), outbox: newOutbox(&n.tasks)}
	m.machine = &machine{clock: n.clock, beat: m.m.Beat, carry: m.carry}
	m.addClasses()
	n.member = m
}

// subscribe begins to serve. Each phase of a stage is a queue group, and a subject of this member's own.
func (m *member) subscribe(s *subscriptions) error {
	n := m.n
	for _, managed := range n.opts.Manager.Stages("") {
		if !n.opts.hosts(managed.Stage) {
			continue
		}
		phases := map[messages.Phase]pipeline.Func{messages.Before: managed.Before, messages.After: managed.After}
		for _, phase := range []messages.Phase{messages.Before, messages.After} { // in this order for who lists endpoints
			if phases[phase] == nil {
				continue
			}
			if err := m.servePhase(s, managed.Stage, phase); err != nil {
				return err
			}
		}
	}
	return m.serveClasses(s)
}

func (m *member) servePhase(s *subscriptions, st pipeline.Stage, phase messages.Phase) error {
	n := m.n
	p := &served{m: m, stage: st, phase: phase, pool: newPool(n.opts.StageSlots)}
	p.endpoint = endpointOf(st.Kind, phase, st.Name)
	if len(n.opts.Middleware) > 0 {
		p.handle = n.wrap(p.handler)
	}
	m.pools = append(m.pools, p.pool)
	subject := n.subj.Hop(st.Kind, phase, st.Name)
	n.stats.endpoint(p.endpoint, phaseEndpoint(n.subj, st, phase))
	if err := s.serve(subject, st.Name, p.asked); err != nil {
		return err
	}
	return s.serve(n.subj.MemberHop(st.Kind, phase, st.Name, n.opts.Name), "", p.asked)
}

// wrap puts the middleware around a handler.
func (n *Node) wrap(h message.HandlerFunc) message.HandlerFunc {
	for i := len(n.opts.Middleware) - 1; i >= 0; i-- {
		h = n.opts.Middleware[i](h)
	}
	return h
}

// groups are the stages and classes that this process serves, as its mark says.
func (m *member) groups() (out []string) {
	for _, s := range m.n.opts.Manager.Stages("") {
		if m.n.opts.hosts(s.Stage) && (s.Before != nil || s.After != nil) {
			out = append(out, groupOf(s.Kind, s.Name))
		}
	}
	for group := range m.classes {
		out = append(out, group)
	}
	return out
}

// wait returns when nothing is in hand any more.
func (m *member) wait() { m.busy.Wait() }

func (m *member) end() {
	for _, p := range m.pools {
		p.end()
	}
}

// served is a phase of a stage that this process serves.
type served struct {
	m        *member
	stage    pipeline.Stage
	phase    messages.Phase
	pool     *pool
	endpoint string
	handle   message.HandlerFunc // with the middleware around it; nil: there is none
}

// asked takes a question as it comes. From here on it is in hand, and its owner is shown so.
func (s *served) asked(m *nats.Msg) {
	owner, n, ok := s.m.learn(m.Reply)
	if !ok {
		s.m.n.garbage(m, "a question without a reply subject of an owner")
		return
	}
	q := question{owner, n}
	s.m.Lock()
	fresh := s.m.m.Question(s.m.clock.now(), owner, n, 0)
	var ctx context.Context
	if fresh {
		ctx, s.m.open[q] = context.WithCancelCause(context.Background())
	}
	s.m.Unlock()
	if !fresh {
		return
	}
	s.m.busy.Add(1)
	if !s.pool.do(func() { defer s.m.busy.Done(); s.work(ctx, m, q) }) {
		s.m.busy.Done()
	}
}

// question names a question to a member.
type question struct {
	owner string
	n     uint64
}

// dropVerb is what a member hears of a question whose answer nobody waits for: its owner's reply subject says which.
const dropVerb = "drop"

// drop ends the work on a question, and keeps it from beginning.
func (m *member) drop(q question) {
	m.Lock()
	cancel := m.open[q]
	m.Unlock()
	if cancel != nil {
		cancel(pipeline.ErrCancelled)
	}
}

// dropAll drops the questions of an owner; of all owners if it is empty.
func (m *member) dropAll(owner string, why error) {
	m.Lock()
	defer m.Unlock()
	for q, cancel := range m.open {
		if owner == "" || q.owner == owner {
			cancel(why)
		}
	}
}

// answered says that a question is in hand no more.
func (m *member) answered(q question) {
	m.Lock()
	cancel := m.open[q]
	delete(m.open, q)
	m.m.Answered(q.owner, q.n)
	m.Unlock()
	cancel(nil)
}

// learn reads whose question it is, and where its owner hears.
func (m *member) learn(reply string) (owner string, n uint64, ok bool) {
	rest, ok := strings.CutPrefix(reply, m.n.replyRoot)
	if !ok {
		return "", 0, false
	}
	t := strings.SplitN(rest, ".", 4) // owner, secret, number, member
	if len(t) < 2 || t[0] == "" {
		return "", 0, false
	}
	if len(t) > 2 {
		n, _ = strconv.ParseUint(t[2], 10, 64)
	}
	root := reply[:len(m.n.replyRoot)+len(t[0])+1+len(t[1])]
	m.Lock()
	defer m.Unlock()
	if m.owners[t[0]] != root {
		m.owners[strings.Clone(t[0])] = strings.Clone(root)
	}
	return t[0], n, true
}

// work answers one question.
func (s *served) work(ctx context.Context, m *nats.Msg, q question) {
	defer s.m.answered(q)
	if m.Header.Get(hdrAlone) != "" {
		select {
		case s.m.alone <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-s.m.alone }()
	}
	if ctx.Err() != nil {
		return
	}
	data, err := s.guarded(ctx, m, q)
	switch {
	case ctx.Err() != nil: // dropped; an owner that is there all the same asks again
	case errors.Is(err, errLate):
		s.m.n.stats.late.Add(1)
	case err != nil:
		s.m.n.garbage(m, err.Error())
	case data != nil:
		s.m.n.send(&nats.Msg{Subject: m.Reply + "." + s.m.n.opts.Name, Data: data,
			Header: nats.Header{hdrWire: {wireVersion}}})
	}
}

// guarded runs the handler. What panics here is not the stage, whose panics are errors, but what is around it. The call
// hears of it as of any error of the stage: a process that died of the question would be asked again, and the next one.
func (s *served) guarded(ctx context.Context, m *nats.Msg, q question) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			a := &messages.Answer{Member: s.m.n.opts.Name,
				Error: &messages.Thrown{Text: fmt.Sprintf("panic: %v", p), Stack: string(debug.Stack())}}
			data, err = a.Marshal()
		}
	}()
	if s.handle == nil {
		return s.answer(ctx, q.owner, m.Data)
	}
	in := message.NewMessage(m.Header.Get(hdrCall), m.Data)
	in.SetContext(ctx)
	in.Metadata[metaOwner], in.Metadata[metaSubject] = q.owner, m.Subject
	in.Metadata[hdrCall] = m.Header.Get(hdrCall)
	out, err := s.handle(in)
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return out[0].Payload, nil
}

// Metadata of the messages that handlers get, beside the headers of the question.
const (
	metaOwner   = "shallot-owner"
	metaSubject = "shallot-subject"
)

// errLate says that nobody waits for the answer to a question any more.
var errLate = errors.New("the time of the question is over")

// handler is answer as middleware sees it.
func (s *served) handler(in *message.Message) ([]*message.Message, error) {
	data, err := s.answer(in.Context(), in.Metadata[metaOwner], in.Payload)
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage(in.UUID, data)}, nil
}

// answer has a phase run: an owner's question in, its answer out.
func (s *served) answer(ctx context.Context, owner string, question []byte) ([]byte, error) {
	q, err := messages.ReadQuestion(question)
	if err != nil {
		return nil, err
	}
	name, phase := q.Call.Slip.Stage()
	if name != s.stage.Name || phase != s.phase || q.Call.Kind != s.stage.Kind {
		return nil, errors.New("a question for " + endpointOf(q.Call.Kind, phase, name) + " came to " + s.endpoint)
	}
	if !q.Until.IsZero() {
		until := s.m.clock.wall(s.m.here(owner, stamped(q.Until)))
		if !time.Now().Before(until) {
			return nil, errLate
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	a := s.run(ctx, q)
	data, err := s.m.n.codec.answer(ctx, q.Call.Tenant, a)
	if err != nil {
		failure := failed(err)
		failure.Member, failure.Took = a.Member, a.Took
		if data, err = failure.Marshal(); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func (s *served) run(ctx context.Context, q *messages.Question) *messages.Answer {
	if !s.stage.Blind {
		if err := s.m.n.codec.fill(ctx, q.Call); err != nil {
			return failed(err)
		}
	}
	a := pipeline.Run(ctx, s.stage, q, s.m.n.opts.Name)
	var err error
	if a.Error != nil {
		err = errors.New(a.Error.Text)
	}
	s.m.n.stats.step(s.endpoint, a.Took, err)
	return a
}

// here converts a time on an owner's clock.
func (m *member) here(owner string, theirs time.Duration) time.Duration {
	m.Lock()
	defer m.Unlock()
	return m.m.Presence.Here(owner, theirs)
}

// carry carries out what the member's machine decided.
func (m *member) carry(e *protocol.Effect) {
	switch e.Kind {
	case protocol.Ping:
		m.n.ping(e, m.n.replies.root)
	case protocol.Probe:
		m.n.publish(m.n.replies.root+".probe."+strconv.FormatInt(int64(e.At), 10), "", nil)
	case protocol.DropQuestions:
		m.dropAll(e.To, pipeline.ErrCancelled)
	case protocol.List:
		m.show(e.To)
	case protocol.Start:
		m.startJob(e)
	case protocol.Stop, protocol.Drop:
		m.dropJob(protocol.Work{Call: e.Call, N: e.N})
	case protocol.PutBegun, protocol.SetBegun, protocol.GetBegun, protocol.PutOutcome:
		stored := *e
		m.n.tasks.Go(func() { m.store(stored) })
	case protocol.Expire:
		stored := *e
		m.n.tasks.Go(func() { m.n.expiry.letGo(stored) })
	default:
		m.tell(e)
	}
}

// show sends an owner the list of what is in hand for it.
func (m *member) show(owner string) {
	m.Lock()
	questions, works := m.m.Hands.Shown(owner)
	if m.direct(owner) {
		l := inHand{append([]uint64(nil), questions...), append([]protocol.Work(nil), works...)}
		m.Unlock()
		m.n.shown(m.n.opts.Name, l)
		return
	}
	data, err := json.Marshal(inHand{questions, works})
	root := m.owners[owner]
	m.Unlock()
	if err == nil && root != "" {
		m.n.publish(root+".list."+m.n.opts.Name, "", data)
	}
}

// direct reports whether what an owner is told needs no message.
func (m *member) direct(owner string) bool { return m.n.cfg.Fusion && owner == m.n.opts.Name }
