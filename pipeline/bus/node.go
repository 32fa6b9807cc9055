// Package bus moves calls over NATS. The process that owns a call runs it through its onion: it asks a member of each
// stage in turn, offers the work of the target, and tells the caller the end. What is decided on the way is decided by
// package protocol; this package carries it out.
//
// The way of a call: bound.go accepts it, onion.go runs it, hops.go asks stages, targets.go has the target's work done,
// wait.go hands the end out. On the other side members.go answers for stages and work.go does the work of targets.
// A call that is stored comes by entering.go and queue.go, runs by stored.go, and ends by ends.go.
package bus

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
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

// Node is one process's part of the bus. Make it with New, run it with Start, end it with Stop. It is safe for
// concurrent use between the two.
type Node struct {
	opts  Options
	cfg   Config
	log   *slog.Logger
	subj  messages.Subjects
	nc    *nats.Conn
	js    jetstream.JetStream
	codec *codec
	clock clock

	owner   *machine // guards owns
	owns    *protocol.Owner
	onion   *onion
	replies *replies
	calls   running
	durable *durables
	member  *member
	// replyRoot is what all reply subjects of owners begin with.
	replyRoot string
	presence  *presence
	past      *past
	begun     *begun
	expiry    *expiry
	stats     nodeStats
	guard     replyGuard
	// What operators and callers ask.
	*switches
	*reports
	*services
	*deadLetters
	decider

	subs     subscriptions
	draining atomic.Bool
	loop     context.Context // of the node's own goroutines
	stopLoop context.CancelFunc
	loops    sync.WaitGroup
	work     tally // calls that this process runs
	tasks    tally // effects on stores that are under way
}

// New binds to the streams and buckets that provisioning has made. It subscribes to nothing yet.
func New(ctx context.Context, o Options) (*Node, error) {
	o = o.withDefaults()
	if err := o.Config.validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(o.Conn)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	n := &Node{opts: o, cfg: o.Config, log: o.Log, subj: messages.Subjects{Root: o.Config.Root}, nc: o.Conn, js: js,
		clock: newClock()}
	n.replyRoot = n.subj.Control("reply", "")
	n.subs = subscriptions{nc: o.Conn, log: o.Log}
	objects, err := js.ObjectStore(ctx, jet.BodiesObjects)
	if err != nil {
		return nil, fmt.Errorf("bus: object store %s: %w; run the provisioning step first", jet.BodiesObjects, err)
	}
	n.codec = newCodec(objects, n.cfg.ClaimCheck, int(o.Conn.MaxPayload()))
	control, err := jet.OpenBucket(ctx, js, jet.ControlBucket)
	if err != nil {
		return nil, fmt.Errorf("bus: %w; run the provisioning step first", err)
	}
	if n.begun, err = newBegun(ctx, js, n.clock); err != nil {
		return nil, err
	}
	n.makeOwner()
	n.makeMember()
	if n.presence, err = newPresence(ctx, n); err != nil {
		return nil, err
	}
	if n.past, err = newPast(ctx, n); err != nil {
		return nil, fmt.Errorf("bus: %w; run the provisioning step first", err)
	}
	n.deadLetters = &deadLetters{js: js, subj: n.subj, begun: n.begun, stats: &n.stats, tasks: &n.tasks, opts: &n.opts}
	if n.durable, err = newDurable(ctx, n); err != nil {
		return nil, err
	}
	n.makeParts(control)
	return n, nil
}

// makeParts makes what looks at the node from outside, and what cleans up behind it.
func (n *Node) makeParts(control *jet.Bucket) {
	n.deadLetters.durable, n.decider = n.durable, decider{n.durable.holds}
	n.switches = &switches{bucket: control, manager: n.opts.Manager, nc: n.nc, subj: n.subj, log: n.log,
		set: map[*pipeline.Managed]bool{}}
	n.services = &services{opts: &n.opts, root: n.cfg.Root, nc: n.nc, stats: &n.stats, subs: &n.subs,
		answering: n.Answering}
	n.reports = &reports{opts: &n.opts, nc: n.nc, js: n.js, subj: n.subj, stats: &n.stats, guard: &n.guard,
		presence: n.presence, calls: &n.calls, held: n.durable.held, subs: &n.subs, tasks: &n.tasks, answering: n.Answering,
		asked: n.Asked, capacity: n.Capacity, past: n.past}
	n.expiry = &expiry{begun: n.begun, js: n.js, subj: n.subj, clock: n.clock, calls: &n.calls, holds: n.durable.holds,
		log: n.log}
}

// NewName names a process, new in each life. By the name of an embedded one, others of its kind know that it is gone.
func NewName(embedded bool) string {
	if embedded {
		return protocol.EmbeddedName + secret(4)
	}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, host)
	return host + "-" + secret(4)
}

// secret returns n random bytes as a token of a subject.
func secret(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// protocolConfig is what the protocol needs of the configuration.
func (n *Node) protocolConfig() protocol.Config {
	return protocol.Config{AckWait: n.cfg.AckWait, HopPatience: n.cfg.HopPatience, MemberTimeout: n.cfg.MemberTimeout,
		AfterOutage: n.cfg.AfterOutage, MaxQueueWait: n.cfg.MaxQueueWait, QueueCapacity: n.cfg.QueueCapacity,
		KeepBytes: n.cfg.KeepBytes}
}

// Start subscribes and begins to work. It returns when every subscription is live on the server.
func (n *Node) Start(ctx context.Context) error {
	n.loop, n.stopLoop = context.WithCancel(context.WithoutCancel(ctx))
	if err := n.replies.subscribe(&n.subs); err != nil {
		return err
	}
	if err := n.hearProcess(); err != nil {
		return err
	}
	if err := n.member.subscribe(&n.subs); err != nil {
		return err
	}
	if err := n.nc.FlushTimeout(10 * time.Second); err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	n.up()
	if err := n.presence.start(ctx); err != nil {
		return err
	}
	n.loops.Go(func() { n.watchConnection(n.loop) })
	if n.opts.Entry {
		n.loops.Go(func() { every(n.loop, sweepEvery, func() { n.expiry.sweep(n.loop) }) })
	}
	n.loops.Go(func() { n.keepCounters(n.loop) })
	sweepStages(n.loop, &n.opts, &n.loops)
	n.loops.Go(func() { n.tick(n.loop) })
	if err := n.serveControl(); err != nil {
		return err
	}
	if n.opts.Embedded && n.opts.Entry {
		(&reclaimer{js: n.js, nc: n.nc, cfg: n.cfg, log: n.log}).reclaim(ctx)
	}
	if err := n.durable.start(n.loop); err != nil {
		return err
	}
	if n.opts.Entry {
		if err := n.opts.Callers.Serve(); err != nil {
			return err
		}
	}
	return n.nc.FlushTimeout(10 * time.Second)
}

// Stop ends the node gracefully: it takes nothing new, finishes what runs within the drain time, gives back what runs
// longer, and takes its mark away. What is lost if it fails is asked again by others.
func (n *Node) Stop(ctx context.Context) error {
	n.draining.Store(true)
	n.opts.Callers.Drain()
	limit := time.AfterFunc(n.cfg.Drain, func() {
		n.calls.cancelBound(errStopping)
		n.member.dropAll("", errStopping) // their owners ask others
		n.opts.Callers.GiveUp()
	})
	defer limit.Stop()
	defer n.opts.Callers.GiveUp()
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.subs.drainQueues()
		n.durable.stop(ctx)
		n.durable.stored.work.Wait()
		n.opts.Callers.Wait()
		n.work.Wait()
		n.member.wait()
		n.tasks.Wait()
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.New("bus: some work had not ended; others go on with it")
	}
	if err := n.past.keep(ctx); err != nil {
		n.log.Debug("the last counters of this process are not stored", "err", err)
	}
	n.presence.leave(ctx)
	n.subs.end()
	if n.stopLoop != nil {
		n.stopLoop()
	}
	n.loops.Wait()
	n.member.end()
	if n.nc.IsConnected() {
		err = errors.Join(err, n.nc.FlushTimeout(time.Second))
	}
	return err
}

// JetStream returns the node's JetStream handle, for host and tests.
func (n *Node) JetStream() jetstream.JetStream { return n.js }

// Name is the process's name on the bus.
func (n *Node) Name() string { return n.opts.Name }

// Cancel ends a call that its caller does not want any more, wherever it runs. It may be called for a call that has
// ended.
func (n *Node) Cancel(id string) {
	n.Cancelled(id)
	n.durable.cancel(id)
}

// Cancelled ends the call if this process runs it.
func (n *Node) Cancelled(id string) {
	if o := n.calls.get(id); o != nil {
		o.cancel(pipeline.ErrCancelled)
	}
}

// Result implements pipeline.Entry.
func (n *Node) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	return n.durable.result(ctx, tenant, id)
}

// Peek is [Node.Result] without the wait: the end of a call and when it was recorded; a nil call while it is under way,
// with [pipeline.ErrHeld] while it waits for an answer.
func (n *Node) Peek(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	return n.durable.peek(ctx, tenant, id)
}
