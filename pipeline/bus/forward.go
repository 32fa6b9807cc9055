package bus

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// held is a call in this process's memory together with the lease that answers for it.
type held struct {
	c     *messages.Call
	lease Lease
	fresh time.Time // when the lease was delivered or last marked, as far as is known
}

type waiting struct {
	Stage string    `json:"stage"`
	Since time.Time `json:"since"`
	Times int       `json:"times"`
	// Subject is where the program of a remote stage is missing; empty if it is the stage's own worker that is.
	Subject string `json:"subject,omitempty"`
}

// forward hands the call over to its next place and settles the lease as that place demands. After it returned, the
// call belongs to somebody else and must not be touched.
func (n *Node) forward(h *held, next pipeline.Next) {
	for {
		if end, ok := n.mustEnd(h.c, next); ok {
			h.c.Fail(end)
			n.end(h)
			return
		}
		switch {
		case next.Delay > 0:
			n.delay(h, next.Delay)
			return
		case next.Where == pipeline.ToReply:
			n.end(h)
			return
		case next.Where == pipeline.ToHold:
			n.park(h, next)
			return
		case next.Where == pipeline.ToTarget:
			class, err := n.classify(h.c)
			if err != nil {
				next = pipeline.TurnBack(h.c, messages.AsFault(err, messages.TargetOrigin))
				continue
			}
			n.progress(h.c, queuePlace+string(h.c.Kind)+"-"+messages.Token(class))
			n.checkpoint(h, n.subj.Target(h.c.Kind, class))
			return
		default:
			stop := h.c.Slip.Stops[h.c.Slip.At]
			name, phase := h.c.Slip.Stage()
			if stop.Durable {
				n.checkpoint(h, n.subj.Stage(h.c.Kind, phase, name))
				return
			}
			if s, ok := n.hosted(h.c.Kind, name); ok && n.cfg.Fusion {
				var done bool
				if next, done = n.runStage(h, s); done {
					return
				}
				continue
			}
			n.hop(h)
			return
		}
	}
}

// classify names the work queue of a call that is at its target. The name may stand in a body behind a claim check.
func (n *Node) classify(c *messages.Call) (string, error) {
	if len(c.Refs()) > 0 {
		ctx, cancel := n.until(c)
		defer cancel()
		if err := n.codec.fill(ctx, c); err != nil {
			return "", err
		}
	}
	class, err := n.opts.Classify(c)
	if err == nil && !slices.Contains(n.cfg.classes(c.Kind), class) {
		// Without a consumer the stored call would lie there for good.
		return "", messages.NewFault(messages.TargetAbsent, "there is no work queue %s for %s calls; name it in the configuration of every process", class, c.Kind)
	}
	return class, err
}

// mustEnd reports whether the call goes no further inward: its time is over, or its caller left. A call on its way
// out with a reply goes on, so that audit and stores see its end.
func (n *Node) mustEnd(c *messages.Call, next pipeline.Next) (*messages.Fault, bool) {
	if next.Where == pipeline.ToReply {
		return nil, false
	}
	if c.Past(time.Now()) {
		if c.Fault != nil && mayTryAgain(c) {
			f := messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s, before another attempt could be made; the %s failed with %s: %s",
				c.Slip.Where(), c.Kind, c.Fault.Code, c.Fault.Message).From("deadline") // FB-13
			f.Last = c.Fault.Code
			return f, true
		}
		if c.Fault != nil {
			return c.Fault, true // the stage or target whose time ran out has said so
		}
		var w waiting
		if c.Noted(messages.NoteWaiting, &w) && w.Subject != "" {
			return messages.NewFault(messages.StageAbsent, "%s; the call waited for it since %s, until its deadline",
				pipeline.AbsentText(w.Stage, w.Subject), w.Since.Format(time.RFC3339)).From(w.Stage), true
		}
		if c.Noted(messages.NoteWaiting, &w) {
			return messages.NewFault(messages.StageAbsent, "no worker serves stage %s of the %s chain; the call waited for one since %s, until its deadline; start one with: worker --stages %s",
				w.Stage, c.Kind, w.Since.Format(time.RFC3339), w.Stage).From(w.Stage), true
		}
		return messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s", c.Slip.Where()).From("deadline"), true
	}
	if !c.Slip.Back && n.cancels.cancelled(c.ID) {
		return messages.NewFault(messages.Cancelled, "the caller left while the call was at %s", c.Slip.Where()).From("caller"), true
	}
	return nil, false
}

// mayTryAgain reports whether a stage that is still to come could have had the failed target tried again, or another
// one: then it is the time that ended the call, not the failure.
func mayTryAgain(c *messages.Call) bool {
	return c.Fault.OfTarget() && c.Fault.Code.Info().Fallback && slices.ContainsFunc(c.Slip.Frames, func(f messages.Frame) bool { return c.Slip.Stops[f.Stop].Keep })
}

// hop sends the call to the phase that its slip names, over core NATS. If nobody is there, the server says so at once
// to the process's inbox, and the call is stored as a scheduled hop instead.
func (n *Node) hop(h *held) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := n.codec.encode(ctx, h.c)
	if err != nil {
		n.fail(h, err)
		return
	}
	name, phase := h.c.Slip.Stage()
	m.Header[hdrLease] = []string{h.lease.Ack}
	fresh := h.fresh
	if f := n.marker.freshness(h.lease); f.After(fresh) {
		fresh = f
	}
	m.Header[hdrUntil] = []string{fresh.Add(n.cfg.AckWait).UTC().Format(time.RFC3339Nano)}
	out := message.NewMessage(h.c.ID, m.Data)
	for k, v := range m.Header {
		out.Metadata[k] = v[0]
	}
	if _, here := n.hosted(h.c.Kind, name); !here || n.draining.Load() {
		out.Metadata[metaReply] = n.inbox + ".h." + n.unheard.remember(func() { n.absent(h, "") })
	}
	if err := n.pub.Publish(n.subj.Hop(h.c.Kind, phase, name), out); err != nil {
		n.log.Warn("hop was not sent; the lease brings the call back", "call", h.c.ID, "stage", name, "err", err)
	}
}

// absent handles a hop that nobody received, or whose stage has no program at the subject: skip the stage if it may be
// skipped, else wait for it on the server.
func (n *Node) absent(h *held, subject string) {
	n.work.Go(func() {
		leave := n.marker.enter(h.lease, h.fresh, h.c.Deadline)
		defer leave()
		name, _ := h.c.Slip.Stage()
		if h.c.Slip.Stops[h.c.Slip.At].Skippable {
			n.log.Warn("nobody serves the stage; the call skips it", "call", h.c.ID, "stage", name)
			n.forward(h, pipeline.Skip(h.c))
			return
		}
		w := waiting{Stage: name, Since: time.Now().UTC()}
		if h.c.Noted(messages.NoteWaiting, &w) && w.Stage != name {
			w = waiting{Stage: name, Since: time.Now().UTC()}
		}
		w.Times++
		w.Subject = subject
		h.c.Note(messages.NoteWaiting, w)
		if subject != "" {
			n.progress(h.c, "stage "+name+", whose program does not run")
		} else {
			n.progress(h.c, "stage "+name+", which nobody serves")
		}
		n.delay(h, min(absentFirst<<min(w.Times-1, 4), absentMax))
	})
}

// delay stores the call as a schedule, which the server holds; then the lease is settled. A parked call holds no lease.
func (n *Node) delay(h *held, d time.Duration) {
	at := time.Now().Add(max(d, scheduleStep))
	if !h.c.Deadline.IsZero() && at.After(h.c.Deadline) {
		at = h.c.Deadline
	}
	id := h.c.ID
	n.store(h, n.subj.Delay(id), nats.Header{
		hdrSchedule: {"@at " + at.UTC().Format(time.RFC3339Nano)},
		hdrSchedTo:  {n.subj.Route(h.c.Kind)},
	})
	if n.cancels.cancelled(id) { // the cancel came while it was stored, and found nothing to cut short
		n.hasten(id)
	}
}

// checkpoint stores the call under the subject; the stored message takes over the lease.
func (n *Node) checkpoint(h *held, subject string) { n.store(h, subject, nil) }

func (n *Node) store(h *held, subject string, extra nats.Header) {
	n.work.Add(1)
	defer n.work.Done()
	if err := n.storeNext(h.c, subject, extra); err != nil {
		n.fail(h, err)
		return
	}
	n.settleLater(h.lease)
}

// storeNext stores the successor of a call: generation + 1, whatever the verdict. "Duplicate" means that it exists.
// It is tried until the call's deadline; the error is a fault for what can never succeed, any other leaves the call
// to its lease.
func (n *Node) storeNext(c *messages.Call, subject string, extra nats.Header) error {
	c.Generation++
	ctx, cancel := n.until(c)
	defer cancel()
	m, err := n.codec.encode(ctx, c)
	if err != nil {
		return err
	}
	m.Subject = subject
	for k, v := range extra {
		m.Header[k] = v
	}
	m.Header[hdrMsgID] = []string{c.ID + "." + strconv.FormatUint(c.Generation, 10)}
	_, err = n.publishStored(ctx, m)
	return err
}

// publishStored publishes until a PubAck comes, and reports whether the message was there already. It has an id, so
// trying again does not store it twice.
func (n *Node) publishStored(ctx context.Context, m *nats.Msg) (duplicate bool, err error) {
	wait := 50 * time.Millisecond
	for {
		try, cancel := context.WithTimeout(ctx, 3*time.Second)
		ack, err := n.js.PublishMsg(try, m, jetstream.WithRetryAttempts(1))
		cancel()
		if err == nil {
			return ack.Duplicate, nil
		}
		var api *jetstream.APIError
		switch {
		case errors.Is(err, nats.ErrMaxPayload):
			return false, messages.NewFault(messages.TooLarge, "the call does not fit into a message of %d bytes", n.nc.MaxPayload())
		case errors.As(err, &api) && api.ErrorCode == 10054: // above the stream's own max_msg_size
			return false, messages.NewFault(messages.TooLarge, "the call does not fit into a message of its stream: %s", api.Description)
		case errors.As(err, &api) && api.ErrorCode == 10077 && strings.HasPrefix(m.Subject, n.subj.Control("call", "entry", "")):
			// Maximum messages or bytes exceeded: the exact refusal. The other streams have no limit; there the same
			// code is a fault of the server's disk, and the call waits for it to mend.
			return false, messages.NewFault(messages.Overloaded, "the entry stream is full; try again later")
		case ctx.Err() != nil || n.nc.IsClosed():
			return false, err
		}
		pause(ctx, wait)
		wait = min(wait*2, 2*time.Second)
	}
}

// until is the time that the bus itself may take for a call: to its deadline, and a little beyond so that the end of a
// call that is just over can still be stored.
func (n *Node) until(c *messages.Call) (context.Context, context.CancelFunc) {
	limit := time.Now().Add(30 * time.Second)
	if d := c.Deadline.Add(10 * time.Second); d.After(limit) {
		limit = d
	}
	return context.WithDeadline(context.Background(), limit)
}

// fail ends a call whose next place could not be reached for a reason that trying again would not mend; any other
// error leaves the call to its lease.
func (n *Node) fail(h *held, err error) {
	f, ok := errors.AsType[*messages.Fault](err)
	if !ok {
		n.log.Error("the call could not be passed on; its lease brings it back", "call", h.c.ID, "at", h.c.Slip.Where(), "err", err)
		return
	}
	if h.c.Slip.Done() {
		n.log.Error("the end of the call could not be passed on", "call", h.c.ID, "err", err)
		return
	}
	f.Origin = "bus"
	h.c.Slip.At, h.c.Slip.Back, h.c.Slip.Frames = -1, true, nil
	h.c.Fail(f)
	n.end(h)
}

// settleLater acknowledges a lease, after what follows it is stored. The node's Stop waits for it.
func (n *Node) settleLater(l Lease) {
	n.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := settle(ctx, n.nc, l); err != nil {
			n.log.Warn("lease not settled; its call comes again and is found to be a duplicate", "err", err)
		}
	})
}

// progress tells the accepting process where the call waits, for the fault that it gives if the time is over. It is
// only news: losing it loses nothing.
func (n *Node) progress(c *messages.Call, where string) {
	if c.Return.Inbox == "" {
		return
	}
	_ = n.nc.PublishMsg(&nats.Msg{Subject: c.Return.Inbox, Header: nats.Header{hdrProgress: {headerValue(where)}}})
}

// unheard remembers sent messages for a short while, for the server's "no responders".
type unheard struct {
	mu   sync.Mutex
	next uint64
	sent map[string]unheardMsg
}

type unheardMsg struct {
	at     time.Time
	absent func()
}

func newUnheard() *unheard { return &unheard{sent: map[string]unheardMsg{}} }

func (u *unheard) remember(absent func()) (id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next++
	id = strconv.FormatUint(u.next, 36)
	u.sent[id] = unheardMsg{time.Now(), absent}
	return id
}

func (u *unheard) take(id string) (func(), bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	m, ok := u.sent[id]
	delete(u.sent, id)
	return m.absent, ok
}

func (u *unheard) prune(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, unheardWindow/2)
		u.mu.Lock()
		for id, m := range u.sent {
			if time.Since(m.at) > unheardWindow {
				delete(u.sent, id)
			}
		}
		u.mu.Unlock()
	}
}
