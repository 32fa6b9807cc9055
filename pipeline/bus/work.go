package bus

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// class is a class of target work that this process does.
type class struct {
	role     TargetRole
	group    string
	endpoint string
}

// targetSlots is how much work of a class runs at once if its role does not say.
const targetSlots = 1024

// job is work of a target in this process, from its offer until its owner has confirmed the outcome.
type job struct {
	work   protocol.Work
	in     input
	class  *class
	owner  string
	until  time.Duration // by the own clock
	bound  bool          // nobody goes on with the call if its owner dies
	said   *said         // what it says to a caller; nil: nobody will ask for it again
	cancel context.CancelCauseFunc
	// out and data are the outcome, the second as it travels.
	out  *result
	data []byte
	refs []string // objects with its large bodies, which are this process's to delete
}

// input is the call of a job: the call itself where its owner is this process and calls are fused, its wire form else.
type input struct {
	call   *messages.Call
	data   []byte
	tenant string
}

func (m *member) addClasses() {
	for _, t := range m.n.opts.Targets {
		if t.Slots == 0 {
			t.Slots = targetSlots
		}
		c := &class{role: t, group: groupOf(t.Kind, messages.Token(t.Class))}
		c.endpoint = "target." + string(t.Kind) + "-" + messages.Token(t.Class)
		m.classes[c.group] = c
		if t.Shared == "" {
			m.m.Works.Serve(c.group, t.Slots)
		} else {
			m.m.Works.ServeWith(c.group, t.Slots, "shared "+t.Shared)
		}
	}
}

// serves reports whether this process does work of the class.
func (m *member) serves(group string) bool { return m.classes[group] != nil }

// targetHere reports whether offers of the class go to this process without a message.
func (n *Node) targetHere(group string) bool { return n.cfg.Fusion && n.member.serves(group) }

func (m *member) serveClasses(s *subscriptions) error {
	for _, group := range slices.Sorted(maps.Keys(m.classes)) { // in this order for who lists endpoints
		c := m.classes[group]
		subject := m.n.subj.Work(c.role.Kind, c.role.Class)
		m.n.stats.endpoint(c.endpoint, micro.EndpointInfo{Subject: subject, QueueGroup: messages.Token(c.role.Class),
			Metadata: map[string]string{"kind": string(c.role.Kind), "class": c.role.Class}})
		heard := func(msg *nats.Msg) { m.offer(c, msg) }
		if err := s.serve(subject, messages.Token(c.role.Class), heard); err != nil {
			return err
		}
		if err := s.serve(m.n.subj.MemberWork(c.role.Kind, c.role.Class, m.n.opts.Name), "", heard); err != nil {
			return err
		}
		for _, verb := range workVerbs {
			if _, err := s.hear(m.n.subj.Class(c.role.Kind, c.role.Class, verb),
				func(msg *nats.Msg) { m.heard(verb, msg) }); err != nil {
				return err
			}
		}
	}
	return m.hearSaid(s)
}

// heard takes what an owner says of work that it does not offer.
func (m *member) heard(verb string, msg *nats.Msg) {
	memo, ok := readMemo(msg.Data)
	if !ok {
		return
	}
	switch verb {
	case workVerbs[protocol.WhoHas]:
		m.learn(msg.Reply)
		m.whoHas(memo.work, memo.owner, msg.Reply, memo.seq)
	case workVerbs[protocol.Confirm]:
		m.confirmed(memo.work)
	case workVerbs[protocol.Cancel]:
		m.cancelled(memo.work)
	}
}

// offer takes an offer as a message.
func (m *member) offer(c *class, msg *nats.Msg) {
	f, wire, err := readTerms(msg.Data)
	owner, _, ok := m.learn(msg.Reply)
	if err != nil || !ok {
		m.n.garbage(msg, "an offer that cannot be read")
		return
	}
	f.Call, f.Owner, f.Class = msg.Header.Get(hdrCall), strings.Clone(owner), c.group
	f.Tenant, _ = messages.Untoken(msg.Header.Get(hdrTenant))
	m.offered(f, input{data: wire, tenant: f.Tenant})
}

func (m *member) offered(f protocol.Offered, in input) {
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		j, known := m.jobs[f.Work]
		if !known {
			j = &job{work: f.Work, in: in, class: m.classes[f.Class], until: m.m.Presence.Here(f.Owner, f.Until),
				bound: f.Bound}
			m.jobs[f.Work] = j
		}
		j.owner = f.Owner
		out = m.m.Works.Offered(now, f, out)
		if !m.m.Works.Holds(f.Work) {
			delete(m.jobs, f.Work)
		}
		return out
	})
}

func (m *member) whoHas(w protocol.Work, owner, _ string, seq uint64) {
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		if j := m.jobs[w]; j != nil {
			j.owner = owner
		}
		return m.m.Works.WhoHas(now, w, owner, seq, out)
	})
}

// confirmed hears that the call has ended: nobody asks for the outcome any more.
func (m *member) confirmed(w protocol.Work) {
	var refs []string
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		if j := m.jobs[w]; j != nil {
			refs = j.refs
		}
		return m.m.Works.Confirmed(now, w, out)
	})
	if len(refs) == 0 {
		return
	}
	m.n.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.n.loop), objectTime)
		defer cancel()
		if err := m.n.codec.remove(ctx, refs); err != nil {
			m.n.log.Debug("the large bodies of an outcome were not deleted; they go by age", "call", w.Call, "err", err)
		}
	})
}

func (m *member) cancelled(w protocol.Work) {
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return m.m.Works.Cancelled(now, w, out)
	})
}

func (m *member) job(w protocol.Work) *job {
	m.Lock()
	defer m.Unlock()
	return m.jobs[w]
}

// startJob runs work in a goroutine of its own.
func (m *member) startJob(e *protocol.Effect) {
	j := m.job(protocol.Work{Call: e.Call, N: e.N})
	if j == nil {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	m.Lock()
	j.cancel = cancel
	m.Unlock()
	m.busy.Go(func() {
		defer cancel(nil)
		m.runJob(ctx, j)
	})
}

func (m *member) runJob(ctx context.Context, j *job) {
	if j.until > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, m.clock.wall(j.until))
		defer stop()
	}
	c, data, refs := m.perform(ctx, j)
	st := protocol.Done
	if c.Fault != nil && c.Fault.Unsent {
		st = protocol.NotRun
	}
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		j.out, j.data, j.refs = &result{c}, data, refs
		j.in = input{tenant: c.Tenant}
		return m.m.Works.Ended(now, j.work, st, len(data), out)
	})
}

// perform runs the target on the job's call, and returns the call as the target left it. data is the outcome as it
// travels, if it has to, with refs to objects that hold its large bodies.
func (m *member) perform(ctx context.Context, j *job) (c *messages.Call, data []byte, refs []string) {
	c = j.in.call
	var err error
	if c == nil {
		if c, err = messages.Unmarshal(j.in.data); err != nil {
			c = &messages.Call{ID: j.work.Call, Kind: j.class.role.Kind, Tenant: "default"}
		}
	}
	if err == nil {
		err = m.n.codec.fill(ctx, c)
	}
	begin := time.Now()
	if err != nil {
		c.Fail(messages.AsFault(err, messages.TargetOrigin))
	} else {
		pipeline.RunTarget(ctx, j.class.role.Target, c, m.emitter(j, c))
		c.NoteTargetTook(time.Since(begin))
	}
	var failed error
	if c.Fault != nil {
		failed = c.Fault
	}
	m.n.stats.step(j.class.endpoint, time.Since(begin), failed)
	if j.in.call != nil && !m.n.opts.Once(c) {
		return c, nil, nil
	}
	if data, refs, err = m.n.codec.encodeResult(context.WithoutCancel(ctx), c, j.work); err != nil {
		c.Fail(messages.AsFault(err, "bus"))
		data, _ = c.Marshal()
	}
	return c, data, refs
}

// headerValue keeps a value readable and single-lined.
func headerValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}

// dropJob forgets a job: nobody wants it, or its outcome is confirmed.
func (m *member) dropJob(w protocol.Work) {
	m.Lock()
	j := m.jobs[w]
	var cancel context.CancelCauseFunc
	if j != nil {
		cancel = j.cancel
	}
	var words *said
	if !m.m.Works.Holds(w) {
		if j != nil {
			words = j.said
		}
		delete(m.jobs, w)
	}
	m.Unlock()
	words.end()
	if cancel != nil {
		cancel(pipeline.ErrCancelled)
	}
}

// store carries out an effect on a record.
func (m *member) store(e protocol.Effect) {
	j := m.job(protocol.Work{Call: e.Call, N: e.N})
	if e.Kind == protocol.GetBegun && j == nil { // of the number before
		j = m.job(protocol.Work{Call: e.Call, N: e.N + 1})
	}
	if j == nil {
		return
	}
	m.Lock()
	tenant, payload, out := j.in.tenant, j.data, j.out != nil
	m.Unlock()
	if !out {
		payload = nil
	}
	st, _ := m.n.begun.do(context.Background(), tenant, e, payload)
	m.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return m.m.Works.Stored(now, e, st, out)
	})
}

// tell tells an owner, or all of them.
func (m *member) tell(e *protocol.Effect) {
	if e.Kind == protocol.Free {
		m.free(e)
		return
	}
	m.Lock()
	root := m.owners[e.To]
	m.Unlock()
	w, name := protocol.Work{Call: e.Call, N: e.N}, m.n.opts.Name
	direct := m.direct(e.To)
	at := e.Call + "." + strconv.FormatUint(e.N, 10) + "."
	switch {
	case e.Kind == protocol.Outcome:
		m.tellOutcome(e, root)
	case e.Kind == protocol.Busy && direct:
		m.n.busy(w, e.Seq, name)
	case e.Kind == protocol.Busy:
		m.n.publish(root+".busy."+at+strconv.FormatUint(e.Seq, 10)+"."+name, "", []byte(strconv.Itoa(int(e.Waiting))))
	case e.Kind == protocol.Has && direct:
		m.n.has(w, name, e.Yes)
	case e.Kind == protocol.Has:
		m.n.publish(root+".has."+at+strconv.FormatBool(e.Yes)+"."+name, "", nil)
	}
}

func (m *member) tellOutcome(e *protocol.Effect, root string) {
	w, name := protocol.Work{Call: e.Call, N: e.N}, m.n.opts.Name
	m.Lock()
	j := m.jobs[w]
	var out *result
	var data []byte
	if j != nil {
		out, data = j.out, j.data
	}
	m.Unlock()
	if j == nil && e.State == protocol.Done {
		return // it was confirmed meanwhile, and its outcome is not kept any more
	}
	if m.direct(e.To) && j != nil {
		m.n.outcome(w, name, e.State, e.Yes, letter{local: out})
		return
	}
	msg := &nats.Msg{Subject: strings.Join([]string{root, "out", e.Call, strconv.FormatUint(e.N, 10),
		stateWord(e.State, e.Yes), name}, "."),
		Data: data, Header: nats.Header{hdrWire: {wireVersion}}}
	if out != nil && out.call.Stream {
		m.outbox.post(len(data), func() { m.n.send(msg) }) // after the pieces of the reply
		return
	}
	m.n.send(msg)
}

// free says that there is room: to the other owners, and to this process's own where calls are fused.
func (m *member) free(e *protocol.Effect) {
	kind, name, _ := cutGroup(e.Group)
	if m.direct(m.n.opts.Name) {
		m.n.free(e.Group, m.n.opts.Name, int(e.Free))
	}
	m.n.publish(m.n.subj.Capacity(messages.Kind(kind), name), "", []byte(m.n.opts.Name+" "+strconv.Itoa(int(e.Free))))
}
