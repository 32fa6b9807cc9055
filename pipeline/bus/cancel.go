package bus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// errHandBack is the cause of a context that ended because the process stops: the call is stored again, not failed.
var errHandBack = errors.New("handed back: the process stops")

// cancels knows the work of this process by call, and remembers for a while which calls were cancelled, because a
// cancel may overtake its call.
type cancels struct {
	mu      sync.Mutex
	running map[string]map[*context.CancelCauseFunc]struct{}
	gone    map[string]time.Time
	handed  bool
}

const (
	cancelMemory = 10 * time.Minute
	cancelMost   = 50_000
)

func newCancels() *cancels {
	return &cancels{running: map[string]map[*context.CancelCauseFunc]struct{}{}, gone: map[string]time.Time{}}
}

// enter makes the context in which work for a call runs: it ends at the call's deadline, by cancel, or when the
// process hands its work back.
func (s *cancels) enter(call *messages.Call) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := func() {}
	if !call.Deadline.IsZero() {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, call.Deadline)
		stop = end
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.gone[call.ID]; ok {
		cancel(pipeline.ErrCancelled)
	}
	if s.handed {
		cancel(errHandBack)
	}
	set := s.running[call.ID]
	if set == nil {
		set = map[*context.CancelCauseFunc]struct{}{}
		s.running[call.ID] = set
	}
	set[&cancel] = struct{}{}
	return ctx, func() {
		s.mu.Lock()
		delete(set, &cancel)
		if len(set) == 0 && len(s.running[call.ID]) == 0 {
			delete(s.running, call.ID)
		}
		s.mu.Unlock()
		cancel(nil)
		stop()
	}
}

func (s *cancels) cancel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if len(s.gone) >= cancelMost {
		for k, t := range s.gone {
			if now.Sub(t) > cancelMemory {
				delete(s.gone, k)
			}
		}
	}
	if len(s.gone) < cancelMost {
		s.gone[id] = now
	}
	for c := range s.running[id] {
		(*c)(pipeline.ErrCancelled)
	}
}

func (s *cancels) cancelled(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.gone[id]
	return ok && time.Since(t) <= cancelMemory
}

// handBack ends all running work so that its calls are stored again.
func (s *cancels) handBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handed = true
	for _, set := range s.running {
		for c := range set {
			(*c)(errHandBack)
		}
	}
}

func (n *Node) subscribeCancel() error {
	return n.listen(n.subj.Control("cancel", "*"), func(m *nats.Msg) {
		if id, ok := n.cancelled(m.Subject); ok {
			n.cancels.cancel(id)
		}
	})
}

// Cancelled ends the work here of a call that somebody cancelled by a message, and its wait wherever it waits.
func (n *Node) Cancelled(id string) {
	n.cancels.cancel(id)
	n.hasten(id)
}

// cancelled is the call that a cancel subject names.
func (n *Node) cancelled(subject string) (id string, ok bool) {
	return messages.Untoken(subject[len(n.subj.Control("cancel", "")):])
}

// Cancel tells every process that works on the call to stop, and ends its wait if it is parked on a schedule. It may be
// called for a call that has ended.
func (n *Node) Cancel(id string) {
	n.cancels.cancel(id)
	if err := n.nc.Publish(n.subj.Cancel(id), nil); err != nil {
		n.log.Warn("cancel was not sent", "call", id, "err", err)
	}
	n.work.Go(func() { n.hasten(id) })
}

// hasten ends the wait of a cancelled call (RT-9): its message is stored where its schedule would have put it, and that
// one store takes the schedule away (bus-lab.md). If the schedule fires meanwhile, two copies of one generation run to
// the end, where the first wins. A call that waits for an answer ends at once.
func (n *Node) hasten(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n.waitlist.due(id)
	s, err := n.js.Stream(ctx, jet.HopsStream)
	if err != nil {
		return
	}
	waiting, err := s.GetLastMsgForSubject(ctx, n.subj.Delay(id))
	if err != nil {
		return // it waits for nothing, which is the ordinary case
	}
	m := &nats.Msg{Subject: waiting.Header.Get(hdrSchedTo), Data: waiting.Data, Header: nats.Header{
		hdrScheduler: {n.subj.Delay(id)}, hdrSchedNext: {"purge"},
		hdrMsgID: {waiting.Header.Get(hdrMsgID) + ".now"}, // whoever hastens it too stores nothing
	}}
	for k, v := range waiting.Header {
		if !strings.HasPrefix(k, "Nats-") {
			m.Header[k] = v
		}
	}
	if _, err := n.js.PublishMsg(ctx, m); err != nil {
		n.log.Debug("the wait of a cancelled call was not cut short", "call", id, "err", err)
	}
}
