package bus

import (
	"time"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// waiter is somebody who waits in this process for the end of a stored call.
type waiter struct {
	*pending
	tenant string
	until  time.Time // then the end is looked for
}

// wait adds somebody who waits for the call in this process.
func (s *ends) wait(call string, w waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[call] = append(s.waiting[call], w)
}

// late takes out those who wait for a call whose time is over.
func (s *ends) late(now time.Time) map[string][]waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	var late map[string][]waiter
	for call, waiting := range s.waiting {
		if !now.After(waiting[0].until) {
			continue
		}
		if late == nil {
			late = map[string][]waiter{}
		}
		late[call] = waiting
		delete(s.waiting, call)
	}
	return late
}

// unwait takes one of them away again.
func (s *ends) unwait(call string, p *pending) {
	s.mu.Lock()
	var kept []waiter
	for _, q := range s.waiting[call] {
		if q.pending != p {
			kept = append(kept, q)
		}
	}
	if s.waiting[call] = kept; len(kept) == 0 {
		delete(s.waiting, call)
	}
	s.mu.Unlock()
	s.forget(call)
}

// forget ends the reading of a result for which nobody waits any more.
func (s *ends) forget(call string) {
	s.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
		if !s.awaited(call) {
			o.Waits.Forget(call)
		}
		return out
	})
}

// known ends all looking for the end of a call: it is here, or the call is parked.
func (s *ends) known(call string) {
	s.forget(call)
	s.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
		o.Accepts.Ended(call)
		return out
	})
}

// await has the result read now and then, if somebody still waits for it; now says that it may be stored already.
func (s *ends) await(call string, now bool) {
	s.decide(func(o *protocol.Owner, t time.Duration, out []protocol.Effect) []protocol.Effect {
		if !s.awaited(call) {
			return out
		}
		return o.Waits.Wait(t, call, now, out)
	})
}

func (s *ends) awaited(call string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting[call]) > 0
}
