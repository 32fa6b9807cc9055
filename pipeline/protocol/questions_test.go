package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A question that nobody waits for is taken back from whoever may have it: the one that showed it or was asked by name,
// else the whole group.
func TestAForgottenQuestionIsTakenBackFromWhoeverMayHaveIt(t *testing.T) {
	t.Parallel()
	p, h := NewPresence("o"), &Hearing{}
	h.Up(0)
	for _, m := range []string{"a", "b"} {
		_, _ = p.Marked(0, m, []string{"s"}, nil)
	}
	a := newAsks(silentAfter, p, h)
	n, _ := a.Sent(0, Question{Call: "c", Stage: "s"})
	require.ElementsMatch(t, []string{"a", "b"}, a.Forget(n))
	require.Empty(t, a.Forget(n), "once")
	n, _ = a.Sent(0, Question{Call: "c", Stage: "s"})
	a.shown(200*time.Millisecond, "b", []uint64{n})
	require.Equal(t, []string{"b"}, a.Forget(n))
	n, _ = a.Sent(0, Question{Call: "c", Stage: "s"})
	require.True(t, a.Answered(time.Second, n, "a"))
	require.Empty(t, a.Forget(n), "it was answered")
}

// Nobody hears the answers to questions of an owner that is gone.
func TestQuestionsOfAnOwnerThatIsGoneAreDropped(t *testing.T) {
	t.Parallel()
	h := newHands()
	require.True(t, h.take(0, "dead", 1))
	require.True(t, h.take(0, "alive", 2))
	var dropped []string
	for _, e := range h.tick(time.Second, func(owner string) bool { return owner == "dead" }, nil) {
		if e.Kind == DropQuestions {
			dropped = append(dropped, e.To)
		}
	}
	require.Equal(t, []string{"dead"}, dropped)
	h.done("dead", 1)
	for _, e := range h.tick(2*time.Second, func(string) bool { return true }, nil) {
		require.False(t, e.Kind == DropQuestions && e.To == "dead", "there is nothing left to drop")
	}
}

// Work of a child waits before work that begins something new, and is not refused for the length of the line.
func TestAChildIsNeverBehindANewCall(t *testing.T) {
	t.Parallel()
	b := newBench()
	l := b.Runs.line("k")
	l.full, l.filled, l.took, l.out = true, b.now, 14*time.Second, 1
	start := func(call string, child bool) []Effect {
		work := Target{Work: Work{call, 1}, Class: "k", Tenant: "t", Child: child, Until: b.now + time.Minute, Fresh: true}
		return b.Runs.Start(b.now, work, nil)
	}
	for _, call := range []string{"new1", "new2"} {
		require.Empty(t, start(call, false))
	}
	require.NotEmpty(t, only(start("new3", false), Wake), "the line is too long for a new call")
	require.Empty(t, start("child", true))
	out := b.Runs.Free(b.now, "k", "m", 1, nil)
	require.Equal(t, "child", only(out, Offer)[0].Call)
}
