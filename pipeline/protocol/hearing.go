package protocol

import "time"

// Hearing measures silence only as far as the process can hear. A probe goes to the subscription that carries the
// answers; when it comes back, everything that was sent to the process before it has been read. So silence counts up
// to the sending of the last probe that came back, and not before the last outage or stop of the process.
type Hearing struct {
	after   time.Duration // how long others may take to come back after an outage
	up      bool
	base    time.Duration // the end of the last outage or stop
	horizon time.Duration // when the last probe that came back was sent
	probed  time.Duration // when the last probe was sent; 0: none since the outage or stop
	latest  time.Duration // when the last probe of all was sent
}

// Up starts hearing anew.
func (h *Hearing) Up(now time.Duration) { h.up, h.base, h.probed = true, now, 0 }

// Down ends it. Silence does not grow until Up.
func (h *Hearing) Down() { h.up = false }

// Frozen says that the process was stopped: what was sent to it meanwhile may be lost or still unread.
func (h *Hearing) Frozen(now time.Duration) { h.base, h.probed = now, 0 }

// Probed takes a probe that came back. One that was never sent is somebody's garbage.
func (h *Hearing) Probed(sent time.Duration) {
	if sent <= h.latest {
		h.horizon = max(h.horizon, sent)
	}
}

// Since is how long nothing was heard since t.
func (h *Hearing) Since(t time.Duration) time.Duration { return max(0, h.horizon-max(t, h.base)) }

// Calm is Since without the time right after an outage, in which others are still coming back.
func (h *Hearing) Calm(t time.Duration) time.Duration {
	return max(0, h.horizon-max(t, h.base+h.after))
}

// Current reports whether all that was sent before the last outage or stop has been read. Until then a message may be
// old, however new it looks.
func (h *Hearing) Current() bool { return h.up && h.horizon >= h.base }

// Whole reports whether there was no outage or stop since t.
func (h *Hearing) Whole(t time.Duration) bool { return h.Current() && h.base <= t }

func (h *Hearing) tick(now, every time.Duration, out []Effect) []Effect {
	if !h.up || now-h.probed < every {
		return out
	}
	h.probed, h.latest = now, now
	return append(out, Effect{Kind: Probe, At: now})
}
