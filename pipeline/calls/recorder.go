package calls

import (
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// Options say what a recorder records.
type Options struct {
	// Send sends an event, does not wait for it and does not keep data. It is called by one goroutine.
	Send func(subject string, data []byte) error
	Root string // of all subjects
	Name string // of this process on the bus
	// Sample is the share of calls without a fault whose stories are told at their end, 0 to 1. Those with a fault always
	// are.
	Sample float64
	// Texts keeps what stages changed with its text; else only calls that ask to be explained have it.
	Texts bool
	// Changes keeps what stages changed at all.
	Changes bool
	Log     *slog.Logger
}

// Recorder tells what happens to the calls that this process owns, as events, and knows those that run. A call never
// waits for it: events that cannot be sent are counted and lost. Make it with New, end it with Close. It is safe for
// concurrent use.
type Recorder struct {
	opts     Options
	subjects messages.Subjects
	events   chan event
	watched  atomic.Int64 // until when single steps are told, in Unix nanoseconds
	lost     atomic.Int64

	mu      sync.Mutex
	running map[string]*watch
	spare   sync.Pool // of *buffer

	stop context.CancelFunc
	done chan struct{}
}

// event is what waits to be sent.
type event struct {
	subject string
	data    *buffer
}

// buffer holds what is being written, to be used again.
type buffer struct{ b []byte }

// mostSpare is the size above which a buffer is not kept for others.
const mostSpare = 64 << 10

// buffer returns an empty buffer; drop takes it back.
func (r *Recorder) buffer() *buffer {
	if b, ok := r.spare.Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, 0, 2048)}
}

func (r *Recorder) drop(b *buffer) {
	if cap(b.b) <= mostSpare {
		b.b = b.b[:0]
		r.spare.Put(b)
	}
}

// waiting is how many events may wait to be sent.
const waiting = 4096

// New makes a recorder that sends events from now on.
func New(o Options) *Recorder {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Recorder{opts: o, subjects: messages.Subjects{Root: o.Root}, events: make(chan event, waiting),
		running: map[string]*watch{}, stop: stop, done: make(chan struct{})}
	go r.send(ctx)
	return r
}

// Close sends what waits and takes nothing more.
func (r *Recorder) Close() {
	r.stop()
	<-r.done
}

// Name is that of this process.
func (r *Recorder) Name() string { return r.opts.Name }

// Lost returns how many events were lost since the start.
func (r *Recorder) Lost() int64 { return r.lost.Load() }

// What a message costs is mostly that somebody is woken for it: the client library, the server, its store. So events
// go out together where there are many: more than one in gatherTime, and gatherFree more. Few go out at once.
const (
	gatherTime = 5 * time.Millisecond
	gatherFree = 64
)

func (r *Recorder) send(ctx context.Context) {
	defer close(r.done)
	publish := func(e event) {
		if err := r.opts.Send(e.subject, e.data.b); err != nil {
			r.lose(err)
		}
		r.drop(e.data)
	}
	var next time.Time // when those that follow may go out
	for {
		select {
		case e := <-r.events:
			publish(e)
		case <-ctx.Done():
			r.all(publish)
			return
		}
		r.all(publish)
		now := time.Now()
		if saved := now.Add(-gatherFree * gatherTime); next.Before(saved) {
			next = saved
		}
		if next = next.Add(gatherTime); next.After(now) {
			select {
			case <-time.After(next.Sub(now)):
			case <-ctx.Done():
			}
		}
	}
}

// all publishes the events that wait.
func (r *Recorder) all(publish func(e event)) {
	for {
		select {
		case e := <-r.events:
			publish(e)
		default:
			return
		}
	}
}

// lose counts a lost event, and says so now and then.
func (r *Recorder) lose(why any) {
	if n := r.lost.Add(1); n == 1 || n%10_000 == 0 {
		r.opts.Log.Warn("events of calls are lost; the calls themselves are not", "lost", n, "why", why)
	}
}

// tell has an event sent, and its buffer dropped.
func (r *Recorder) tell(subject string, data *buffer) {
	select {
	case r.events <- event{subject, data}:
	default:
		r.lose("too many wait to be sent")
		r.drop(data)
	}
}

// Interest is for how long [Recorder.Watched] has single steps told.
const Interest = 15 * time.Second

// Watched says that somebody looks on.
func (r *Recorder) Watched() { r.watched.Store(time.Now().Add(Interest).UnixNano()) }

// isWatched reports whether somebody does.
func (r *Recorder) isWatched() bool {
	until := r.watched.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// sampled reports whether the call is one of those that are told; it depends on its id alone.
func (r *Recorder) sampled(call string) bool {
	if r.opts.Sample >= 1 {
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(call))
	return float64(h.Sum64()>>11)/(1<<53) < r.opts.Sample
}

var _ pipeline.Observer = (*Recorder)(nil)

// Owns implements pipeline.Observer.
func (r *Recorder) Owns(c *messages.Call, o pipeline.Ownership) pipeline.Watch {
	w := &watch{r: r, sampled: r.sampled(c.ID), explain: r.opts.Changes || c.Explain, texts: r.opts.Texts || c.Explain}
	w.story = Story{Call: c.ID, State: Running, Kind: c.Kind, Tenant: c.Tenant, Request: c.RequestID, Session: c.Session,
		Run: c.Run, Agent: c.Agent, Parent: c.Parent, Tool: c.Tool, Stream: c.Stream, Durable: o.Durable, Again: o.Again,
		Owner: r.opts.Name, Accepted: c.Accepted, Began: time.Now().UTC(), Trace: traceID(c.Trace.Parent)}
	if c.Kind == messages.Model {
		w.story.Model = chat.ModelName(c.Request())
	}
	w.where = placeOf(c)
	w.steps = r.buffer()
	w.request, w.reply = c.Request(), c.Reply()
	w.explain = w.explain && (w.sampled || c.Explain)
	w.redactor = redactorOf(c)
	r.mu.Lock()
	r.running[c.ID] = w
	r.mu.Unlock()
	if !o.Again && r.isWatched() {
		event := r.buffer()
		event.b = appendStory(event.b, &w.story, nil)
		r.tell(r.subjects.Event("accepted", string(c.Kind)), event)
	}
	return w
}

// traceID is the id in a traceparent.
func traceID(parent string) string {
	if len(parent) < 36 {
		return ""
	}
	return parent[3:35]
}
