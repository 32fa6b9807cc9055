package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// durableOptions is what the stored calls need of their node.
type durableOptions struct {
	name     string
	inbox    string // a subject under the process's secret reply subject, for its stored calls
	cfg      Config
	log      *slog.Logger
	nc       *nats.Conn
	js       jetstream.JetStream
	codec    *codec
	decide   decide
	calls    *running
	through  func(o *owned, told func(end *messages.Call)) outcome
	classify func(c *messages.Call) (string, error)
	doubt    func(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault
	check    func(ctx context.Context, p Parked, answer json.RawMessage, by string) (json.RawMessage, error)
	fold     func(kind messages.Kind, s messages.Slip)
	callers  Callers
	outbox   *outbox
	allowed  func(inbox string) bool // answers may go there
	entry    bool                    // runs stored calls
	owners   func() int              // how many processes own calls, this one included
	// mayHaveRun reports whether work of the call that must not run twice has begun.
	mayHaveRun func(ctx context.Context, tenant, call string) (bool, error)
	settle     func(m *nats.Msg, then func(m *nats.Msg)) // before a stored call becomes a dead letter; see poison
}

// durables is the half of a node that stores calls: how they enter, who owns them, how they end.
type durables struct {
	opts     durableOptions
	cfg      Config
	subj     messages.Subjects
	decide   decide
	codec    *codec
	ask      *requests
	queue    *workqueue
	stored   *storedCalls
	ends     *ends
	keys     *keys
	who      *who
	holds    *holds
	held     *heldlist
	poison   *poison
	receipts *receipts
	unwanted *unwanted
	results  *jet.Bucket
	redriven *jet.Bucket // under which ids dead calls run again
	calls    *running
	pullers  map[string]*puller // by the subject of their calls, without tenant and call
	subs     []*nats.Subscription
	pulls    string // what the reply subjects of pulls begin with
	pullSub  *nats.Subscription
	outage   outage
	loop     context.Context
	end      context.CancelFunc
	loops    sync.WaitGroup
	// pulling says that pullers are complete; unpulled that it is pulled anew as soon as this process hears itself.
	pulling, unpulled atomic.Bool
}

func newDurables(ctx context.Context, o durableOptions) (*durables, error) {
	d := &durables{opts: o, cfg: o.cfg, codec: o.codec, subj: messages.Subjects{Root: o.cfg.Root}, decide: o.decide,
		calls:    o.calls,
		receipts: &receipts{open: map[string]chan protocol.Effect{}}, unwanted: newUnwanted()}
	var err error
	buckets := map[string]*jet.Bucket{jet.ResultsBucket: nil, jet.IdempotencyBucket: nil, jet.ApprovalsBucket: nil,
		jet.PoisonBucket: nil}
	for name := range buckets {
		if buckets[name], err = jet.OpenBucket(ctx, o.js, name); err != nil {
			return nil, fmt.Errorf("bus: %w; run the provisioning step first", err)
		}
	}
	d.results, d.redriven = buckets[jet.ResultsBucket], buckets[jet.PoisonBucket]
	if o.settle == nil {
		o.settle = func(m *nats.Msg, then func(m *nats.Msg)) { then(m) }
	}
	d.ask = newRequests(o.nc, o.inbox+".s.")
	r := records{d.ask}
	d.queue = newQueue(r, o.decide, o.log)
	d.poison = &poison{records: r, decide: o.decide, subj: d.subj, queue: d.queue, settle: o.settle, log: o.log}
	d.queue.bury = d.poison.bury
	d.queue.stored, d.queue.gone = d.put, d.gone
	d.keys = &keys{records: r, decide: o.decide, store: buckets[jet.IdempotencyBucket], log: o.log}
	d.ends = &ends{records: r, decide: o.decide, codec: d.codec, inbox: o.inbox + ".c.",
		replies: d.subj.Control("reply", ""),
		release: d.keys.release, fold: o.fold, callers: o.callers, allowed: o.allowed, log: o.log,
		outbox: o.outbox, ending: map[string]*ending{}, read: map[string]*reading{}, waiting: map[string][]waiter{}}
	d.who = &who{nc: o.nc, decide: o.decide, own: o.name, subject: d.subj.Who(), reply: o.inbox + ".w", log: o.log,
		owners: o.owners, bound: d.cancelBound, askers: map[string]string{}, cancels: map[uint64]chan bool{}}
	d.holds = &holds{records: r, decide: o.decide, codec: d.codec, queue: d.queue, keys: d.keys, ends: d.ends,
		store: buckets[jet.ApprovalsBucket], results: d.results, subj: d.subj, nc: o.nc, log: o.log, subject: d.subjectOf,
		check: o.check, parking: map[string]parking{}}
	d.held = newHeldlist(d.holds, d.unwanted.has)
	d.stored = &storedCalls{decide: o.decide, codec: d.codec, queue: d.queue, ends: d.ends, calls: o.calls,
		through: o.through, unasked: d.unwanted.has, log: o.log, mine: map[string]*mine{}}
	d.pullers, d.pulls = map[string]*puller{}, o.nc.NewInbox()
	return d, nil
}

// storedReplies is what the replies about stored calls begin with, below the process's reply subject.
const storedReplies = "stored"

// newDurable makes the half of a node that stores calls.
func newDurable(ctx context.Context, n *Node) (*durables, error) {
	return newDurables(ctx, durableOptions{
		name: n.opts.Name, inbox: n.replies.root + "." + storedReplies, cfg: n.cfg, log: n.log, nc: n.nc, js: n.js,
		codec: n.codec,
		decide: func(f func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect) {
			n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return f(n.owns, now, out) })
		},
		calls: &n.calls, through: n.onion.run, classify: n.opts.Classify, doubt: n.doubt, check: n.opts.Decide,
		fold: n.opts.Manager.Fold, callers: n.opts.Callers, outbox: n.member.outbox, allowed: n.inboxAllowed,
		mayHaveRun: n.begun.mayHaveRun, settle: n.settle, entry: n.opts.Entry,
		owners: func() int { return n.presence.owners() },
	})
}

// start begins to take stored calls.
func (d *durables) start(ctx context.Context) error {
	d.loop, d.end = context.WithCancel(context.WithoutCancel(ctx))
	heard := map[string]nats.MsgHandler{
		d.subj.Who():                  d.who.asked,
		d.subj.Control("cancel", "*"): d.unasked,
	}
	for subject, handle := range heard {
		sub, err := d.opts.nc.Subscribe(subject, handle)
		if err != nil {
			return fmt.Errorf("bus: subscribe to %s: %w", subject, err)
		}
		d.subs = append(d.subs, sub)
	}
	if d.opts.entry {
		// A subscription of their own, because pulls end when nobody subscribes to their replies any more.
		sub, err := d.opts.nc.Subscribe(d.pulls+".>", d.pulled)
		if err != nil {
			return fmt.Errorf("bus: subscribe to %s: %w", d.pulls, err)
		}
		d.pullSub = sub
		for _, q := range d.cfg.queues() {
			base := strings.TrimSuffix(d.subj.QueuedClass(q.kind, q.class), ".*.*")
			d.pullers[base] = newPuller(d.opts.nc, jet.CallsStream, q.consumer(), d.pulls+"."+q.consumer()+".", d.cfg.Running)
		}
		d.loops.Go(func() { d.held.watch(d.loop) })
		d.loops.Go(func() { every(d.loop, 200*time.Millisecond, func() { d.held.tend(d.loop) }) })
	}
	if err := d.opts.nc.FlushTimeout(objectTime); err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	d.loops.Go(func() { every(d.loop, time.Second, d.tick) })
	d.loops.Go(func() { every(d.loop, unanswered/4, func() { d.ask.sweep(time.Now()) }) })
	d.pulling.Store(true)
	d.pull()
	return nil
}

// up says that the connection is there, for the first time or again.
func (d *durables) up() {
	d.outage.note(time.Now())
	d.pull()
}

// pull pulls anew: the server that a pull waited at may have forgotten it. It waits until a probe has come back since
// the connection is there, for until then each delivery counts as old and is looked up before it runs.
func (d *durables) pull() {
	if !d.pulling.Load() {
		return
	}
	ready := false
	d.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
		ready = o.Hearing.Current()
		return out
	})
	if d.unpulled.Store(!ready); !ready {
		return
	}
	for _, p := range d.pullers {
		p.again(time.Now())
	}
}

// heardItself says that a probe has come back.
func (d *durables) heardItself() {
	if d.unpulled.Load() {
		d.pull()
	}
}

// every calls do at each period until ctx ends.
func every(ctx context.Context, period time.Duration, do func()) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			do()
		case <-ctx.Done():
			return
		}
	}
}

// tick looks after what nobody tells of: pulls that the server forgot, answers that never came, calls whose time is
// over.
func (d *durables) tick() {
	now := time.Now()
	d.outage.tick(now)
	d.heardItself()
	for _, p := range d.pullers {
		p.look(now)
	}
	for call, waiting := range d.ends.late(now) {
		for _, w := range waiting {
			d.loops.Go(func() { d.overdue(call, w) })
		}
	}
	d.queue.sweep(now, func(call string) (has bool) {
		d.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
			has = o.Deliveries.Has(call)
			return out
		})
		return has
	})
}

// heard takes what comes for this process's stored calls.
func (d *durables) heard(m *nats.Msg) {
	rest := strings.TrimPrefix(m.Subject, d.opts.inbox+".")
	switch kind, _, _ := strings.Cut(rest, "."); kind {
	case "s":
		d.ask.heard(m)
	case "c":
		d.ends.heard(m)
	case "w":
		d.who.answered(m)
	}
}

// pulled takes a stored call, which comes on its own subject, or what the server says of a pull.
func (d *durables) pulled(m *nats.Msg) {
	if strings.HasPrefix(m.Subject, d.pulls) {
		for _, p := range d.pullers {
			if strings.HasPrefix(m.Subject, p.prefix) {
				p.status(m, time.Now())
			}
		}
		return
	}
	if p := d.pullers[baseOf(m.Subject)]; p != nil {
		p.came(time.Now())
	}
	d.queue.arrived(m, d.outage.recent(time.Now()))
}

// gone makes room for another call.
func (d *durables) gone(m *nats.Msg) {
	if p := d.pullers[baseOf(m.Subject)]; p != nil {
		p.gone(time.Now())
	}
}

// baseOf is the subject of a stored call without its tenant and its id.
func baseOf(subject string) string {
	for range 2 {
		subject = subject[:max(0, strings.LastIndexByte(subject, '.'))]
	}
	return subject
}

// subjectOf is where a call is stored.
func (d *durables) subjectOf(c *messages.Call) string {
	class, err := d.opts.classify(c)
	if err != nil {
		class = otherClass // its target will say what is wrong
	}
	return d.subj.Queued(c.Kind, d.cfg.queueOf(c.Kind, class), c.Tenant, c.ID)
}

// put hears that a call is in the queue.
func (d *durables) put(e protocol.Effect) {
	if e.N > 0 {
		d.holds.resumed(e.Call, e.N-1)
	}
}

// carry carries out an effect that is about stored calls.
func (d *durables) carry(e protocol.Effect) {
	switch e.Kind {
	case protocol.PutCall:
		d.queue.put(e)
	case protocol.Ack, protocol.InProgress:
		d.queue.mark(e)
	case protocol.PutResult:
		d.ends.put(e)
	case protocol.GetResult:
		d.fetch(e)
	case protocol.PutKey:
		d.keys.put(e)
	case protocol.FreeKey:
		d.keys.free(e.Group, e.Call, 0, func() {})
	case protocol.PutHeld:
		d.holds.put(e)
	case protocol.GetHeld:
		d.holds.get(e, d.key(e.Call))
	case protocol.PutMark:
		d.poison.mark(e, d.key(e.Call))
	case protocol.DropMarks:
		d.poison.drop(e, d.key(e.Call))
	case protocol.DeadLetter:
		d.poison.carry(e)
	case protocol.WhoOwns:
		d.who.ask(e)
	case protocol.Owns:
		d.who.answer(e)
	case protocol.Receipt:
		d.receipts.carry(e)
	case protocol.Run:
		d.stored.begin(e)
	case protocol.Wake:
		if e.Why != protocol.Ended { // that is a work's record; the call goes on
			d.stored.left(e.Call, e.Why)
		}
	case protocol.Answer:
		d.held.over(d.key(e.Call))
		d.ends.told(e.Call, e.Yes)
		d.stored.left(e.Call, protocol.Ended)
	case protocol.Found:
		d.ends.found(e.Call)
	case protocol.Unsure:
		d.ends.unsure(e.Call)
	}
}

// key is the key of a call in buckets. A call of which nothing is known here any more has none.
func (d *durables) key(call string) string {
	if m := d.queue.held(call); m != nil {
		return strings.TrimPrefix(m.Subject, baseOf(m.Subject)+".")
	}
	return d.ends.key(call)
}

// fetch reads the result of a call. If somebody waits here for it, they may have missed that it is parked.
func (d *durables) fetch(e protocol.Effect) {
	key := d.key(e.Call)
	d.ends.fetch(e, key)
	if d.ends.awaited(e.Call) {
		d.holds.whether(key, func() { d.ends.held(e.Call, "") })
	}
}

// hold parks a call that a stage held.
func (d *durables) hold(o *owned, next pipeline.Next) (outcome, error) { return d.holds.hold(o, next) }

// stop takes no more stored calls, waits until those that run have ended or ctx is over for them, and hands the others
// back.
func (d *durables) stop(ctx context.Context) {
	for _, p := range d.pullers {
		p.stop()
	}
	d.stored.drain()
	if d.pullSub != nil {
		_ = d.pullSub.Drain() // what the server has sent already is handed back
	}
	grace, cancel := context.WithTimeout(ctx, d.cfg.Drain)
	defer cancel()
	for grace.Err() == nil && d.stored.count() > 0 {
		_ = wait(grace, 20*time.Millisecond)
	}
	d.stored.handBackAll()
	for ctx.Err() == nil && (d.stored.count() > 0 || d.queue.count() > 0) {
		_ = wait(ctx, 20*time.Millisecond)
	}
	for _, s := range d.subs {
		_ = s.Unsubscribe()
	}
	if d.end != nil { // else the node has not got so far
		d.end()
	}
	d.loops.Wait()
}
