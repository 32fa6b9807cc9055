package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Config is the bus section of the configuration. The zero value of each field means its default.
type Config struct {
	Root          string        // subject root; shallot
	Fusion        bool          // stages and targets of the owner's process run without a hop
	AckWait       time.Duration // of stored calls; 15 s
	MarkTTL       time.Duration // how long a process counts as there after its last mark; 10 s
	HopPatience   time.Duration // how long a question may stay without a sign; 250 ms
	MemberTimeout time.Duration // how long work that is shown no more is waited for; 10 s
	AfterOutage   time.Duration // how long others may be silent after an outage, or a start, and not be lost; 3 s
	MaxQueueWait  time.Duration // longest expected wait in line for a target; 30 s
	QueueCapacity int           // target work that a member queues beyond its slots; 16
	KeepBytes     int           // of outcomes that a member keeps in memory; 64 MiB
	LongDelay     time.Duration // longer delays park a stored call, so that no process holds it; 1 min
	Running       int           // durable calls of a class that a process runs at once; 1,024
	EntryMaxMsgs  int64         // 100,000
	EntryMaxBytes int64         // 4 GiB
	ClaimCheck    int           // bodies above travel as a reference; 64 KiB
	ResultTTL     time.Duration // 24 h
	Replicas      int           // of streams and buckets; 1
	Verify        bool          // check streams and buckets, create none
	Drain         time.Duration // how long Stop waits for running work before it gives calls back; 8 s
	InboxPrefixes []string      // prefixes that reply addresses may have; _INBOX. and _INBOX_
	// Classes are those of each kind of target that calls may go to: provider names, tool executors.
	ModelClasses []string
	ToolClasses  []string
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	count := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	if c.Root == "" {
		c.Root = "shallot"
	}
	def(&c.AckWait, 15*time.Second)
	def(&c.MarkTTL, 10*time.Second)
	def(&c.MaxQueueWait, 30*time.Second)
	def(&c.ResultTTL, 24*time.Hour)
	def(&c.LongDelay, time.Minute)
	def(&c.Drain, 8*time.Second)
	count(&c.Running, targetSlots)
	count(&c.ClaimCheck, 64<<10)
	count(&c.Replicas, 1)
	if c.EntryMaxMsgs == 0 {
		c.EntryMaxMsgs = 100_000
	}
	if c.EntryMaxBytes == 0 {
		c.EntryMaxBytes = 4 << 30
	}
	if len(c.InboxPrefixes) == 0 {
		c.InboxPrefixes = []string{"_INBOX.", "_INBOX_"}
	}
	return c
}

// classes are those that calls of the kind may go to.
func (c Config) classes(k messages.Kind) []string {
	switch k {
	case messages.Model:
		return c.ModelClasses
	case messages.Tool:
		return c.ToolClasses
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.AckWait < time.Second:
		return fmt.Errorf("bus.ack-wait: %s is under 1s; the marks could not keep a call", c.AckWait)
	case c.Running < 1:
		return fmt.Errorf("bus.running: %d; at least 1", c.Running)
	case c.Replicas > 5:
		return fmt.Errorf("nats.replicas: %d; at most 5", c.Replicas)
	}
	return nil
}

// Options say what a node is: its connection, its stages, and its roles.
type Options struct {
	Config Config
	// Conn is the connection; the node does not close it. Connect it with jet.ConnOptions.Direct: what cannot be sent
	// now is decided anew later, so that nothing may wait in a buffer.
	Conn *nats.Conn
	// Name is the process's, new in each life and one token of a subject; empty: one is made.
	Name string
	// Embedded says that this process holds the lock of the directory that the server stores in. Then each other process
	// that held it is gone for sure, and its calls go on here without waiting for the ack wait.
	Embedded bool
	Log      *slog.Logger
	// Manager holds all stages of the configuration, hosted here or not: the entry builds slips from it.
	Manager *pipeline.Manager
	// Hosts reports whether this process runs the stage; nil means all.
	Hosts func(s pipeline.Stage) bool
	// Entry is the role that owns calls: it takes them from NATS and runs stored ones.
	Entry bool
	// Targets are the classes of work that this process does.
	Targets []TargetRole
	// Agents runs agents. Their work is calls, so it is done by the owner of the call itself, and a suspended run is nobody's.
	// Nil: calls of kind agent need a member, as others do.
	Agents pipeline.Target
	// Classify names the class of a call at its target, or says why there is none; nil means "default".
	Classify func(c *messages.Call) (string, error)
	// Once reports whether the call's target must not run twice. Nil means that tools must not.
	Once func(c *messages.Call) bool
	// Validate checks the body of a request before it is accepted; nil accepts all.
	Validate func(kind messages.Kind, body []byte) error
	// ToolStages returns the stages that the call's tool names for itself; nil means that tools have none. An error
	// refuses the call.
	ToolStages func(c *messages.Call) (pipeline.ToolStages, error)
	// Prepare is called for each new call, with its slip, before it is accepted; an error refuses the call. It may add
	// to the request. It runs for one call at a time, for many at once; nil does nothing.
	Prepare func(c *messages.Call) error
	// Decide checks an answer to a held call, before anything is decided, and returns it as the stage that asked takes
	// it; by says who answers. An error refuses the answer, nil says that nothing was decided: the call waits on. The
	// error *[Partly] says that a part was decided. Nil takes every answer as it is.
	Decide func(ctx context.Context, p Parked, answer json.RawMessage, by string) (json.RawMessage, error)
	// Doubt is asked about each call that ends in a fault, or whose time was over before its target: it returns the
	// fault, or another one where it knows that the target was reached all the same. Nil keeps every fault.
	Doubt func(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault
	// Observer is told of the calls that this process owns. Nil: nobody listens.
	Observer pipeline.Observer
	// Root makes a trace for a call whose caller has none; nil: one that nobody records.
	Root func(kind messages.Kind) messages.Trace
	// Middleware is put around the handlers of stages and targets, the first outermost.
	Middleware []message.HandlerMiddleware
	// Callers are those who ask by plain NATS requests; nil: there are none.
	Callers Callers
	// MaxTime is the longest deadline of each kind; the defaults are 10 min, 1 min and 1 h.
	MaxTime map[messages.Kind]time.Duration
	// Longest gives a request more time than its kind has, if it returns more; nil never does.
	Longest func(r pipeline.Request) time.Duration
	// StageSlots bounds how many questions of one stage phase this process works on at once; 256.
	StageSlots int
	// Service is the name of the micro service, which begins with shallot; empty: it is made from the name of the
	// connection. Version and Metadata are what it shows.
	Service  string
	Version  string
	Metadata map[string]string
}

// Callers serves those who ask by plain NATS requests, and knows nothing of the bus but what it asks a Node for.
type Callers interface {
	// Serve takes requests from now on. Only a process with the entry role is asked to.
	Serve() error
	// Drain takes no more requests. Wait then returns when those under way are answered; GiveUp ends their waiting.
	Drain()
	Wait()
	GiveUp()
	// Answer sends the end of a call to its caller, because the process that accepted it does not.
	Answer(c *messages.Call)
}

// noCallers is for a node that nobody asks by plain NATS requests.
type noCallers struct{}

func (noCallers) Serve() error          { return nil }
func (noCallers) Drain()                {}
func (noCallers) Wait()                 {}
func (noCallers) GiveUp()               {}
func (noCallers) Answer(*messages.Call) {}

// TargetRole serves one class of target work.
type TargetRole struct {
	Kind  messages.Kind
	Class string
	Slots int // how much of it runs at once; 1,024
	// Shared names other roles of this process that have the same slots, so that Slots bounds what all of them do
	// together; empty: slots of its own.
	Shared string
	Target pipeline.Target
	// Prompt says that the target returns soon after its context has ended, so that a call can wait for it.
	Prompt bool
}

func (o Options) withDefaults() Options {
	o.Config = o.Config.withDefaults()
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
	if o.Once == nil {
		o.Once = func(c *messages.Call) bool { return c.Kind == messages.Tool }
	}
	if o.StageSlots == 0 {
		o.StageSlots = 256
	}
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	if o.Name == "" {
		o.Name = NewName(o.Embedded)
	}
	return o
}

// hosts reports whether this process runs the stage.
func (o *Options) hosts(s pipeline.Stage) bool { return o.Hosts == nil || o.Hosts(s) }
