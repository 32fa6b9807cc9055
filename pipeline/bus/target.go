package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// addTargets pulls the work queues of the targets that this process serves, by free slots.
func (n *Node) addTargets() {
	queues, shared := map[string]int{}, map[string]slots{}
	for _, t := range n.opts.Targets {
		queues[t.Shared]++
	}
	for _, t := range n.opts.Targets {
		slotCount := t.Slots
		if slotCount == 0 {
			slotCount = 64
		}
		own, idle := make(slots, slotCount), 0
		if queueCount := queues[t.Shared]; t.Shared != "" {
			if shared[t.Shared] == nil {
				shared[t.Shared] = make(slots, max(slotCount, pullers*queueCount))
			}
			own = shared[t.Shared]
			idle = min(max(1, cap(own)/(8*queueCount)), 16) // pulls that wait hold a quarter of the slots at most
		}
		name := string(t.Kind) + "-" + messages.Token(t.Class)
		n.stats.endpoint("target."+name, n.subj.Target(t.Kind, t.Class), name)
		n.subscribed(name, name, &pullSubscriber{
			js: n.js, stream: jet.HopsStream, slots: own, idle: idle, onArrive: n.arriveStored, log: n.log,
		}, func(m *message.Message) error { n.handleTarget(m, t); return nil })
	}
}

// intent is the record of paid work under way: written before it starts, filled with the outcome before that goes on,
// removed a while after the work's lease is settled. A stored outcome is never bought twice (contracts 28).
type intent struct {
	State string    `json:"state"` // running | done
	Since time.Time `json:"since"`
	Runs  int       `json:"runs"`
}

// intentsKept is how long a record outlives its settled lease: longer than the duplicate window, because a restarted
// server may have forgotten which successors it has seen (nats.md A 2).
const intentsKept = 3 * time.Minute

func (n *Node) handleTarget(m *message.Message, t TargetRole) {
	h, ok := n.take(m)
	if !ok {
		return
	}
	switch {
	case !h.c.Slip.AtTarget() || h.c.Kind != t.Kind:
		n.bury(m, &h.lease, "a call that is at "+h.c.Slip.Where()+" came to the work queue of a target")
		return
	case n.draining.Load():
		n.handBack(h)
		return
	case h.c.Past(time.Now()):
		f := messages.NewFault(messages.DeadlineExceeded, "the call's time was over in the work queue of %s %s", t.Kind, t.Class)
		n.forward(h, pipeline.TurnBack(h.c, n.doubt(h.c, f.From("deadline")))) // an earlier holder may have started it
		return
	case n.cancels.cancelled(h.c.ID):
		f := messages.NewFault(messages.Cancelled, "the caller left while the call was at the %s", t.Kind)
		n.forward(h, pipeline.TurnBack(h.c, n.doubt(h.c, f.From("caller"))))
		return
	}
	key := messages.Key(h.c.Tenant, h.c.ID, strconv.FormatUint(h.c.Generation, 10))
	if done, ok := n.intend(h, key); ok {
		n.finishTarget(done, key)
		return
	}
	n.progress(h.c, "the "+string(t.Kind)+" "+t.Class+", which runs")
	n.runTarget(h, t, key)
}

// intend records that the target is about to run. If an earlier holder has stored the outcome already, that is
// returned instead.
func (n *Node) intend(h *held, key string) (*held, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	now := intent{State: "running", Since: time.Now().UTC(), Runs: 1}
	_, err := n.intents.Put(ctx, key, rawjson.Encode(now), 0, pipeline.IfAbsent())
	if err == nil {
		return nil, false
	}
	if errors.Is(err, jet.ErrNoAnswer) && ctx.Err() == nil {
		return n.intend(h, key)
	}
	if !errors.Is(err, pipeline.ErrExists) {
		n.log.Warn("the intent record cannot be written; the work runs without", "call", h.c.ID, "err", err)
		return nil, false
	}
	e, err := n.intents.Get(ctx, key)
	if err != nil {
		n.log.Warn("the intent record cannot be read; the work runs again", "call", h.c.ID, "err", err)
		return nil, false
	}
	var was intent
	first, outcome, _ := bytes.Cut(e.Value, []byte{'\n'}) // line 1 the record, the rest the call as it goes on
	if json.Unmarshal(first, &was) != nil {
		return nil, false
	}
	if was.State == "done" {
		if c, err := n.codec.decode(outcome); err == nil {
			return &held{c: c, lease: h.lease, fresh: h.fresh}, true
		}
	}
	n.log.Info("the work of this call began before and has no stored outcome; it runs again with the same idempotency key",
		"call", h.c.ID, "since", was.Since, "runs", was.Runs+1)
	was.Runs++
	if _, err := n.intents.Put(ctx, key, rawjson.Encode(was), 0, pipeline.IfRevision(e.Revision)); err != nil {
		n.log.Debug("intent record not counted up", "call", h.c.ID, "err", err)
	}
	return nil, false
}

func (n *Node) runTarget(h *held, t TargetRole, key string) {
	before := h.c.Clone()
	ctx, leave := n.cancels.enter(h.c)
	defer leave()
	if err := n.codec.fill(ctx, h.c); err != nil {
		n.forward(h, pipeline.TurnBack(h.c, messages.AsFault(err, "bus")))
		return
	}
	begin := time.Now()
	pipeline.RunTarget(ctx, t.Target, h.c, n.emitter(h))
	if errors.Is(context.Cause(ctx), errHandBack) && h.c.Fault != nil {
		h.c = before
		n.handBack(h)
		return
	}
	var failed error
	if h.c.Fault != nil {
		failed = h.c.Fault
	}
	n.stats.step("target."+string(t.Kind)+"-"+messages.Token(t.Class), time.Since(begin), failed, h.lease.Delivered > 1)
	n.storeOutcome(h.c, key)
	n.finishTarget(h, key)
}

// storeOutcome writes the outcome into the intent record, so that a second delivery of the work finds it.
func (n *Node) storeOutcome(c *messages.Call, key string) {
	ctx, cancel := n.until(c)
	defer cancel()
	m, err := n.codec.encode(ctx, c)
	if err == nil {
		value := append(rawjson.Encode(intent{State: "done", Since: time.Now().UTC(), Runs: 1}), '\n')
		value = append(value, m.Data...)
		for wait := 100 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
			_, err = n.intents.Put(ctx, key, value, 0, pipeline.Always())
			if err == nil || ctx.Err() != nil || errors.Is(err, nats.ErrMaxPayload) {
				break
			}
			pause(ctx, wait)
		}
	}
	if err != nil {
		n.log.Warn("the outcome was not recorded; it is only in the next checkpoint", "call", c.ID, "err", err)
	}
}

// finishTarget stores the checkpoint after the target and ends the work's lease; soon nobody needs the record.
func (n *Node) finishTarget(h *held, key string) {
	n.work.Add(1)
	defer n.work.Done()
	if err := n.storeNext(h.c, n.subj.Route(h.c.Kind), nil); err != nil {
		n.fail(h, err)
		return
	}
	lease, id := h.lease, h.c.ID
	n.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := settle(ctx, n.nc, lease); err != nil {
			n.log.Warn("lease not settled; the work is found to be done when it comes again", "call", id, "err", err)
			return
		}
		n.later.add(intentsKept, func(ctx context.Context) error { return n.intents.Delete(ctx, key) })
	})
}

// emitter sends chunks straight to the process that accepted the call, marked with lease sequence, delivery count and
// number, so that two runs of one call are told apart and a gap is seen (lease.md 8).
func (n *Node) emitter(h *held) pipeline.Emit {
	source := h.lease.Stream + "." + strconv.FormatUint(h.lease.Seq, 10) + "." + strconv.Itoa(h.lease.Delivered)
	inbox, count, noted := h.c.Return.Inbox, 0, false
	marks := pipeline.Marks{Edited: h.c.Edits()}
	if h.c.Flag(messages.NoteIsFallback) { // the stage marks the reply after its end, too late for a stream's headers (FB-2)
		marks.Degraded = messages.StandbyMark(chat.ModelName(h.c.Request()))
	}
	return func(chunk []byte) error {
		if inbox == "" {
			return nil
		}
		for _, piece := range chat.SplitChunk(chunk, n.largest()) {
			count++
			if _, text := chat.ToolChunkText(piece); !noted && (text || h.c.Kind != messages.Tool) {
				noted = true // a tool's sign of life shows nothing
				h.c.Note(noteEmitted, true)
			}
			// What cannot be sent is a gap: the caller gets the rest from the final reply, and work that is paid for
			// goes on.
			header := nats.Header{hdrDelta: {source + "." + strconv.Itoa(count)}}
			marks.Each(func(name, value string) { header[name] = []string{headerValue(value)} })
			if err := n.nc.PublishMsg(&nats.Msg{Subject: inbox, Data: piece, Header: header}); err != nil {
				n.log.Debug("a chunk was not sent; its text comes with the end of the stream", "call", h.c.ID, "bytes", len(piece), "err", err)
			}
		}
		return nil
	}
}

// noteEmitted says that at least one chunk left for the caller.
const noteEmitted = "stream.emitted"

// largest is how many bytes of data fit into a message beside its headers.
func (n *Node) largest() int { return int(n.nc.MaxPayload()) - 8<<10 }
