package model

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Timeouts bound one run of a model. A zero field of a provider means the endpoint's value; a zero field of the
// endpoint means the default.
type Timeouts struct {
	Connect    time.Duration // until a connection stands, TLS included; 10s
	FirstByte  time.Duration // until the headers of the answer; 60s
	FirstToken time.Duration // of a stream: until the first chunk that is more than a role; 60s
	Idle       time.Duration // between two signs of life after that; 30s
	// FirstTokenHold is how long chunks wait that do not count as the first token, where they cannot be shown as they
	// come; 5s.
	FirstTokenHold time.Duration
	Attempt        time.Duration // of the whole run; 5m
	Total          time.Duration // of the whole run too; also the longest deadline of a call; 10m
}

func (t Timeouts) or(above Timeouts) Timeouts {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&t.Connect, above.Connect)
	def(&t.FirstByte, above.FirstByte)
	def(&t.FirstToken, above.FirstToken)
	def(&t.FirstTokenHold, above.FirstTokenHold)
	def(&t.Idle, above.Idle)
	def(&t.Attempt, above.Attempt)
	def(&t.Total, above.Total)
	return t
}

var defaultTimeouts = Timeouts{
	Connect: 10 * time.Second, FirstByte: time.Minute, FirstToken: time.Minute, Idle: 30 * time.Second,
	FirstTokenHold: 5 * time.Second, Attempt: 5 * time.Minute, Total: 10 * time.Minute,
}

// defaultShare is the least time that a run gets while standbys are left.
const defaultShare = 30 * time.Second

// fairTry is the shortest time in which a model can be expected to answer. A call with less than two of them left is
// not divided: both tries would be too short.
const fairTry = time.Second

// share is how long a run may take until it shows something, while n standbys are left: an equal part of what the
// deadline leaves, at least the given time, but never more than half, so that a standby has time too. ok is false where
// the run may take all.
func share(left time.Duration, standbys int, least time.Duration) (d time.Duration, ok bool) {
	if standbys <= 0 || left < 2*fairTry {
		return 0, false
	}
	return max(left/time.Duration(standbys+1), min(least, left/2)), true
}

// hurry starts the clock of the run's share, which ends the run by cancel. It stops once something was shown, because
// then no standby can take over.
func (r *run) hurry(ctx context.Context, cancel context.CancelCauseFunc) *clock {
	k := &clock{cancel: cancel}
	deadline, bound := ctx.Deadline()
	if !r.call.Deadline.IsZero() {
		deadline, bound = r.call.Deadline, true
	}
	if !bound || r.Standbys == nil {
		return k
	}
	if d, ok := share(time.Until(deadline), r.Standbys(r.call), r.LeastShare); ok {
		k.set(d, r.timeout("no reply", d, "its share of the call's time, as standbys are left"))
	}
	return k
}

// timeout returns what makes the fault of a wait that was too long; most waits are not. The message tells the caller
// what was missing; the detail tells operators which limit it was.
func (r *run) timeout(what string, d time.Duration, why string) func() *messages.Fault {
	return func() *messages.Fault {
		f := messages.NewFault(messages.ProviderTimeout, "provider %s: %s in time", r.provider.Name, what)
		return r.provider.explain(f, "%s within %s (%s)", what, d.Round(time.Millisecond), why)
	}
}
