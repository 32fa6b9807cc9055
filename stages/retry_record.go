package stages

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

const (
	// retryRecordTTL is how long the decision for one attempt can be read.
	retryRecordTTL = 24 * time.Hour
	// openStoreWait bounds how long a stage that fails open waits for its store: a dead store must not use up the
	// call's time.
	openStoreWait = 2 * time.Second
)

// retryRecord is the decision for one attempt as bucket shallot_retry holds it, readable with `nats kv`.
type retryRecord struct {
	Max     int           `json:"max"` // attempts over all
	DelayMs int64         `json:"delayMs"`
	Next    time.Time     `json:"next"`     // when the attempt begins
	Last    messages.Code `json:"lastCode"` // why; empty for an empty reply
	Model   string        `json:"model,omitempty"`
}

// decideRetry records that the stage which has the call now lets the inner stages run again after delay, and returns
// the delay to use. created is false if this attempt was decided before (a redelivery): then the recorded time
// stands. A store that does not answer is logged and changes nothing: the frame's attempt routes, not the record.
func decideRetry(
	ctx context.Context, d Deps, c *messages.Call, r retryRecord, delay time.Duration,
) (use time.Duration, created bool) {
	ctx, cancel := context.WithTimeout(ctx, openStoreWait)
	defer cancel()
	s := d.Store("retry")
	stage, _ := c.Slip.Stage()
	key := messages.Key(c.Tenant, c.ID, stage, attemptPath(c))
	r.DelayMs, r.Next = delay.Milliseconds(), time.Now().Add(delay).UTC()
	_, err := s.Put(ctx, key, rawjson.Encode(r), retryRecordTTL, pipeline.IfAbsent())
	if err == nil {
		return delay, true
	}
	if errors.Is(err, pipeline.ErrExists) {
		var old retryRecord
		e, getErr := s.Get(ctx, key)
		if getErr == nil && json.Unmarshal(e.Value, &old) == nil {
			return max(0, min(delay, time.Until(old.Next))), false
		}
		return delay, false
	}
	d.Log.WarnContext(ctx, "retry record not written; the attempt goes on without it",
		"call", c.ID, "key", key, "err", err)
	return delay, true
}

// attemptPath names the attempt that ends now: the own attempt, and, where a stage further out has let the call run
// again too, those attempts before it ("2-1"). Without them the second round of a retry inside a fallback would take
// the records of the first round for its own.
func attemptPath(c *messages.Call) string {
	var path []string
	outer := false
	for i, f := range c.Slip.Frames {
		own := i == len(c.Slip.Frames)-1
		if !own && !c.Slip.Stops[f.Stop].Keep {
			continue
		}
		outer = outer || !own && f.Attempt > 1
		path = append(path, strconv.Itoa(f.Attempt))
	}
	if !outer {
		return strconv.Itoa(c.Attempt())
	}
	return strings.Join(path, "-")
}

// backoff is base*multiplier^n, never more than limit. The first wait has n = 0.
func backoff(base time.Duration, multiplier float64, n int, limit time.Duration) time.Duration {
	d := float64(base)
	for range n {
		if d *= multiplier; d >= float64(limit) {
			return limit
		}
	}
	return min(time.Duration(d), limit)
}

// jittered moves d by up to the given share to either side. The amount follows from the call and the attempt and not
// from chance, so that a redelivery decides the same.
func jittered(d time.Duration, share float64, c *messages.Call) time.Duration {
	if share <= 0 || d <= 0 {
		return d
	}
	stage, _ := c.Slip.Stage()
	return time.Duration(float64(d) * (1 + share*(2*unitHash(c.ID, stage, attemptPath(c))-1)))
}

// unitHash spreads strings evenly over [0,1).
func unitHash(parts ...string) float64 {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	x := h.Sum64() // the high bits of FNV change too little for short inputs; mix them (murmur3's finaliser)
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// failedTarget reports whether what came back is of the target itself, and nothing that a stage, the caller or the
// clock did: only a target fails. A stage that turned the call round has left its name in the notes; a stage that says
// Again clears the name first (see clearAttempt), so it is always that of this attempt.
func failedTarget(c *messages.Call) bool {
	if _, stopped := c.Notes[messages.NoteStopper]; stopped {
		return false
	}
	return c.Fault == nil || c.Fault.OfTarget()
}

// markRetry notes that the call is to be tried again after a delay.
func markRetry(c *messages.Call, delay time.Duration) {
	c.Note(messages.NoteShouldRetry, true)
	c.Note(messages.NoteSuggestedDelay, delay.Milliseconds())
}

// unmarkRetry notes that no attempt follows.
func unmarkRetry(c *messages.Call) {
	c.Note(messages.NoteShouldRetry, false)
	c.Unnote(messages.NoteSuggestedDelay)
}

// forget drops the request that was kept for the stage that has the call.
func forget(c *messages.Call) {
	stage, _ := c.Slip.Stage()
	c.Forget(stage)
}

// clearAttempt removes what the attempt that failed has noted and the next one must not inherit.
func clearAttempt(c *messages.Call) { c.Unnote(messages.NoteStopper) }
