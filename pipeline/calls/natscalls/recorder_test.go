package natscalls_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/calls"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
)

// Without a server, and with more events than can wait, calls go on as fast; what is lost is counted.
func TestEventsThatCannotBeSentAreLostAndNoCallWaitsForThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	nc := w.conn()
	nc.Close()
	r := calls.New(calls.Options{Send: nc.Publish, Name: "owner", Sample: 1})
	const many = 20_000
	for range many {
		tell(r, made("acme"))
	}
	r.Close()
	require.EqualValues(t, many, r.Lost())
}

// A sample leaves out calls that went well, and the same ones everywhere; it leaves out none with a fault.
func TestASampleLeavesOutNoFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	a, b := w.recorder(calls.Options{Name: "a", Sample: 0.25}), w.recorder(calls.Options{Name: "b", Sample: 0.25})
	var last *messages.Call
	for range 400 {
		c := made("acme")
		tell(a, c)
		tell(b, c)
		last = made("acme")
		last.Fail(messages.NewFault(messages.ProviderError, "no").From(messages.TargetOrigin))
		tell(a, last)
	}
	l := w.lookup()
	w.story(l, "", last.ID)
	a.Close()
	b.Close()
	count := func(q calls.Query) int {
		q.Limit = 500
		page, err := l.List(t.Context(), q)
		require.NoError(t, err)
		return len(page.Calls)
	}
	require.Eventually(t, func() bool { return count(calls.Query{Outcome: calls.AnyFault}) == 400 }, 30*time.Second,
		10*time.Millisecond)
	well := count(calls.Query{Outcome: calls.OK})
	require.Greater(t, well, 50)
	require.Less(t, well, 150, "both recorders told of the same calls, which a list shows once")
}

// Texts are kept of what has passed the stage that takes personal data out, and of nothing outside of it.
func TestTextsAreKeptOnlyBehindTheStageThatTakesPersonalDataOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	r := w.recorder(calls.Options{Name: "owner", Texts: true})
	c := made("acme")
	watch := r.Owns(c, pipeline.Ownership{})
	for i, stage := range []string{"outer", "pii", "inner"} {
		c.SetRequest([]byte(`{"model":"gpt-4o","messages":[],"step":"` + stage + `"}`))
		watch.Ran(
			c,
			pipeline.PhaseRun{
				Report: pipeline.Report{Stage: stage, Phase: messages.Before, Attempt: 1, Verdict: pipeline.Continue()},
				Began:  time.Now(),
			},
		)
		_ = i
	}
	c.SetReply([]byte(`{"a":1}`))
	watch.Target(c, pipeline.TargetRun{Began: time.Now()})
	for _, stage := range []string{"inner", "pii", "outer"} {
		c.SetReply([]byte(`{"a":"` + stage + `"}`))
		watch.Ran(
			c,
			pipeline.PhaseRun{
				Report: pipeline.Report{Stage: stage, Phase: messages.After, Attempt: 1, Verdict: pipeline.Continue()},
				Began:  time.Now(),
			},
		)
	}
	watch.Left(c, pipeline.Ended)
	var seen []string
	for _, s := range w.story(w.lookup(), "acme", c.ID)[0].Steps {
		for _, ch := range s.Changes {
			seen = append(seen, s.Stage+" "+string(s.Phase)+" "+ch.At+" "+string(ch.Value))
		}
	}
	require.Equal(
		t,
		[]string{"outer before /messages/0 ", "outer before /step ", `pii before /step "pii"`, `inner before /step "inner"`,
			`inner after /a "inner"`, "pii after /a ", "outer after /a "},
		seen,
	)
}

// A call that was parked has its parts, in their order, and is listed once.
func TestAParkedCallHasTheStoryBeforeAndAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	r := w.recorder(calls.Options{Name: "owner"})
	l := w.lookup()
	c := made("acme")
	r.Owns(c, pipeline.Ownership{}).Left(c, pipeline.Parked)
	require.Eventually(t, func() bool {
		page, err := l.List(t.Context(), calls.Query{State: calls.Held})
		return err == nil && len(page.Calls) == 1 && page.Calls[0].Call == c.ID
	}, 30*time.Second, 5*time.Millisecond)
	r.Owns(c, pipeline.Ownership{Again: true, Durable: true}).Left(c, pipeline.Ended)
	parts := w.story(l, "acme", c.ID)
	require.Len(t, parts, 2)
	require.Equal(t, []any{calls.Held, false, calls.Ended, true},
		[]any{parts[0].State, parts[0].Again, parts[1].State, parts[1].Again})
	page, err := l.List(t.Context(), calls.Query{})
	require.NoError(t, err)
	require.Len(t, page.Calls, 1)
	require.Equal(t, calls.Ended, page.Calls[0].State)
}

// What the start line says of the limits is what holds, whoever made the stream (BU-6).
func TestTheLimitsThatAreSaidAreThoseOfTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{Age: time.Minute, Bytes: 1 << 20})
	have, err := natscalls.Provision(t.Context(), w.js, "", natscalls.Limits{Age: time.Hour, Bytes: 1 << 30, Verify: true})
	require.NoError(t, err)
	require.Equal(t, []any{time.Minute, int64(1 << 20)}, []any{have.Age, have.Bytes})
	have, err = natscalls.Provision(t.Context(), w.js, "", natscalls.Limits{Age: time.Hour, Bytes: 1 << 21})
	require.NoError(t, err)
	require.Equal(t, []any{time.Hour, int64(1 << 21)}, []any{have.Age, have.Bytes})
}
