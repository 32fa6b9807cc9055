// Package bus moves calls over NATS: leases, hops, checkpoints, delays, dead letters, claim checks, cancel, streams of
// deltas, KV stores and provisioning. It is the only package that knows NATS and watermill.
//
// The way of a call: accept.go stores it once, entry.go takes its lease and sends the first hop, serve.go runs the
// phases of the stages that this process hosts, target.go runs what the stages surround, end.go ends the call. Every
// step runs through forward.go, which hands a call over and settles its lease. The reasons are in design.md section 4.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Options say what a node is: its connection, its stages, and its roles.
type Options struct {
	Config Config
	Conn   *nats.Conn // the node does not close it
	Log    *slog.Logger
	// Manager holds all stages of the configuration, hosted here or not: the entry builds slips from it.
	Manager *pipeline.Manager
	// Hosts reports whether this process runs the stage; nil means all.
	Hosts func(s pipeline.Stage) bool
	// Entry is the role that accepts calls from NATS and moves stored ones on.
	Entry bool
	// Targets are the work queues that this process serves.
	Targets []TargetRole
	// Classify names the work queue of a call at its target (contracts 18), or says why there is none. It is needed
	// wherever calls move.
	Classify func(c *messages.Call) (string, error)
	// Validate checks the body of a request before it is accepted; nil accepts all.
	Validate func(kind messages.Kind, body []byte) error
	// ToolStages returns the stages that the call's tool names for itself; nil means that tools have none. An error refuses
	// the call.
	ToolStages func(c *messages.Call) (pipeline.ToolStages, error)
	// Prepare is called for each new call, with its slip, before it is stored; an error refuses the call. It may add
	// to the request. It runs for one call at a time, for many at once; nil does nothing.
	Prepare func(c *messages.Call) error
	// Decide checks an answer to a held call, before anything is decided, and returns it as the stage that asked takes
	// it; by says who answers. An error refuses the answer, nil says that nothing was decided: the call waits on. Nil
	// takes every answer as it is.
	Decide func(ctx context.Context, p Parked, answer json.RawMessage, by string) (json.RawMessage, error)
	// Doubt is asked about each call that ends in a fault, or whose time was over before its target: it returns the
	// fault, or another one where it knows that the target was reached all the same. nil keeps every fault.
	Doubt func(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault
	// Callers are those who ask by plain NATS requests; nil: there are none.
	Callers Callers
	// MaxTime is the longest deadline of each kind; defaults are contracts T3.
	MaxTime map[messages.Kind]time.Duration
	// Longest gives a request more time than its kind has, if it returns more; nil never does.
	Longest func(r pipeline.Request) time.Duration
	// StageSlots bounds how many calls one stage phase works on at once in this process; 256.
	StageSlots int
	// Version is what the micro service shows.
	Version string
}

// Callers serves those who ask by plain NATS requests, and knows nothing of the bus but what it asks a Node for.
type Callers interface {
	// Serve takes requests from now on. Only a process with the entry role is asked to.
	Serve() error
	// Drain takes no more requests. Wait then returns when those under way are answered; GiveUp ends their waiting.
	Drain()
	Wait()
	GiveUp()
	// Answer sends the end of a call to its caller, because the process that accepted it died.
	Answer(c *messages.Call)
}

// TargetRole serves one work queue.
type TargetRole struct {
	Kind  messages.Kind
	Class string
	Slots int // 64
	// Shared names other roles of this process that have the same slots, so that Slots bounds what all of them hold
	// together; empty: slots of its own. Each queue has two slots at least, for the pulls that wait.
	Shared string
	Target pipeline.Target
}

// Node is one process's part of the bus. Make it with New, run it with Start, end it with Stop. It is safe for
// concurrent use between the two.
type Node struct {
	opts     Options
	cfg      Config
	log      *slog.Logger
	subj     messages.Subjects
	nc       *nats.Conn
	js       jetstream.JetStream
	pub      message.Publisher
	codec    *codec
	marker   *marker
	cancels  *cancels
	waiters  *waiters
	unheard  *unheard
	later    chores
	waitlist waitlist
	inbox    string

	results     *jet.Bucket
	idempotency *jet.Bucket
	poison      *jet.Bucket
	intents     *jet.Bucket
	control     *jet.Bucket
	approvals   *jet.Bucket

	router *message.Router
	subs   []message.Subscriber
	// heardSubs are the subscriptions of listen.
	heardSubs []*nats.Subscription
	draining  atomic.Bool
	backlog   atomic.Uint64
	stopLoop  context.CancelFunc
	loops     sync.WaitGroup // goroutines of the node itself
	work      tally          // calls that this process still has to settle
	suspect   chan struct{}  // one slot: calls whose holders died twice run one at a time
	stats     nodeStats
	guard     replyGuard
	peers     peers
}

// New binds to the streams and buckets that provisioning has made. It subscribes to nothing yet.
func New(ctx context.Context, o Options) (*Node, error) {
	o.Config = o.Config.withDefaults()
	if err := o.Config.validate(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Manager == nil {
		o.Manager = &pipeline.Manager{}
	}
	if o.Callers == nil {
		o.Callers = noCallers{}
	}
	if o.Classify == nil {
		o.Classify = func(*messages.Call) (string, error) { return "default", nil }
	}
	if o.StageSlots == 0 {
		o.StageSlots = 256
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	js, err := jetstream.New(o.Conn)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	n := &Node{
		opts: o, cfg: o.Config, log: o.Log, subj: messages.Subjects{Root: o.Config.Root}, nc: o.Conn, js: js,
		inbox: o.Conn.NewInbox(), cancels: newCancels(), waiters: newWaiters(), unheard: newUnheard(),
		suspect: make(chan struct{}, 1),
	}
	if n.pub, err = newPublisher(o.Conn, o.Log); err != nil {
		return nil, fmt.Errorf("bus: publisher: %w", err)
	}
	objects, err := js.ObjectStore(ctx, jet.BodiesObjects)
	if err != nil {
		return nil, fmt.Errorf("bus: object store %s: %w; run the provisioning step first", jet.BodiesObjects, err)
	}
	n.codec = &codec{objects: objects, limit: n.cfg.ClaimCheck, payload: int(o.Conn.MaxPayload())}
	for name, b := range map[string]**jet.Bucket{
		jet.ResultsBucket: &n.results, jet.IdempotencyBucket: &n.idempotency, jet.PoisonBucket: &n.poison,
		jet.IntentsBucket: &n.intents, jet.ControlBucket: &n.control, jet.ApprovalsBucket: &n.approvals,
	} {
		if *b, err = jet.OpenBucket(ctx, js, name); err != nil {
			return nil, fmt.Errorf("bus: %w; run the provisioning step first", err)
		}
	}
	return n, nil
}

// Start subscribes and begins to work. It returns when every subscription is live on the server.
func (n *Node) Start(ctx context.Context) error {
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.stopLoop = cancel
	n.marker = newMarker(n.nc, n.cfg.AckWait)
	if err := n.subscribeInbox(); err != nil {
		return err
	}
	if err := n.subscribeCancel(); err != nil {
		return err
	}
	var err error
	n.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: n.cfg.Drain + 4*time.Second}, watermillLog(n.log))
	if err != nil {
		return fmt.Errorf("bus: router: %w", err)
	}
	n.addStages()
	n.addTargets()
	if n.opts.Entry {
		n.addEntry()
	}
	if err := n.watchSwitches(loop); err != nil {
		return err
	}
	n.loops.Go(func() { n.unheard.prune(loop) })
	n.loops.Go(func() { n.watchBacklog(loop) })
	n.loops.Go(func() { n.later.run(loop) })
	n.loops.Go(func() { n.waiters.sweep(loop) })
	if n.opts.Entry {
		n.loops.Go(func() { n.watchHeld(loop) })
		n.loops.Go(func() { n.tendHeld(loop) })
	}
	n.sweepStages(loop)
	if len(n.subs) > 0 {
		failed := make(chan error, 1)
		n.loops.Go(func() { failed <- n.router.Run(loop) })
		select {
		case <-n.router.Running():
		case err := <-failed:
			return fmt.Errorf("bus: router: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if n.opts.Entry {
		if err := n.opts.Callers.Serve(); err != nil {
			return err
		}
	}
	if err := n.serveReport(); err != nil {
		return err
	}
	if err := n.serveMicro(); err != nil {
		return err
	}
	return n.nc.FlushTimeout(10 * time.Second)
}

// listen subscribes to what every process hears, until Stop is done.
func (n *Node) listen(subject string, heard nats.MsgHandler) error {
	sub, err := n.nc.Subscribe(subject, heard)
	if err != nil {
		return fmt.Errorf("bus: subscribe to %s: %w", subject, err)
	}
	n.heardSubs = append(n.heardSubs, sub)
	return nil
}

// deafen ends what listen began. The connection may live on, and must not answer for a node that has stopped: a reply
// that it took would be lost.
func (n *Node) deafen() {
	for _, s := range n.heardSubs {
		if err := s.Unsubscribe(); err != nil {
			n.log.Debug("not unsubscribed", "subject", s.Subject, "err", err)
		}
	}
}

// Stop ends the node gracefully: it takes nothing new, finishes what runs within the drain time, hands back what
// waits or runs longer by storing it again, and settles every lease that it holds. Nothing is lost if it fails: what
// was not settled is redelivered.
func (n *Node) Stop(ctx context.Context) error {
	n.draining.Store(true)
	n.opts.Callers.Drain()
	var err error
	// Callers on NATS whose calls take longer than the drain time are answered by whoever ends the calls.
	limit := time.AfterFunc(n.cfg.Drain, func() { n.cancels.handBack(); n.opts.Callers.GiveUp() })
	defer limit.Stop()
	defer n.opts.Callers.GiveUp()
	done := make(chan error, 1)
	go func() {
		var err error
		if len(n.subs) > 0 && n.router != nil {
			err = n.router.Close()
		}
		for _, sub := range n.subs {
			_ = sub.Close() // the router does not wait for a message that it took while it closed
		}
		n.opts.Callers.Wait()
		n.work.Wait()
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = errors.Join(err, errors.New("bus: some leases were not settled; their calls are redelivered"))
	}
	n.deafen()
	if n.stopLoop != nil {
		n.stopLoop()
	}
	loops := make(chan struct{})
	go func() { n.loops.Wait(); close(loops) }()
	select {
	case <-loops:
	case <-ctx.Done(): // the router's own loop ends when its handlers do, and one of them may still ask a server that is away
		err = errors.Join(err, errors.New("bus: stopped with work still waiting for the server"))
	}
	if n.marker != nil {
		n.marker.stop()
	}
	if n.nc.IsConnected() {
		err = errors.Join(err, n.nc.FlushTimeout(time.Second))
	}
	return err
}

// JetStream returns the node's JetStream handle, for host and tests.
func (n *Node) JetStream() jetstream.JetStream { return n.js }

// Held counts the leases that this process has in memory.
func (n *Node) Held() int { return n.marker.count() }

func (n *Node) watchBacklog(ctx context.Context) {
	for ctx.Err() == nil {
		if s, err := n.js.Stream(ctx, jet.HopsStream); err == nil {
			n.backlog.Store(s.CachedInfo().State.Msgs)
		}
		pause(ctx, time.Second)
	}
}

// subscribed adds a handler to the router.
func (n *Node) subscribed(name, topic string, sub message.Subscriber, handle message.NoPublishHandlerFunc) {
	n.subs = append(n.subs, sub)
	n.router.AddConsumerHandler(name, topic, sub, func(m *message.Message) error {
		defer n.alone(m)()
		return handle(m)
	})
}

// noCallers is for a node that nobody asks by plain NATS requests.
type noCallers struct{}

func (noCallers) Serve() error          { return nil }
func (noCallers) Drain()                {}
func (noCallers) Wait()                 {}
func (noCallers) GiveUp()               {}
func (noCallers) Answer(*messages.Call) {}
