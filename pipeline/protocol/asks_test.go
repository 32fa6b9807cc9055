package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// bench is an owner with a clock of its own that hears everything: each probe comes back at once.
type bench struct {
	*Owner
	now time.Duration
	out []Effect
}

func newBench() *bench { return newBenchOf(Config{}) }

func newBenchOf(c Config) *bench {
	b := &bench{Owner: NewOwner("owner", c), now: time.Hour}
	b.out = b.Up(b.now, nil)
	b.hear(nil)
	b.out = nil
	return b
}

func (b *bench) hear(from []Effect) {
	for _, e := range b.out[len(from):] {
		if e.Kind == Probe {
			b.Hearing.Probed(e.At)
		}
	}
}

// pass lets time pass tick by tick and returns the effects of the kind that came meanwhile.
func (b *bench) pass(d time.Duration, k Kind) []Effect {
	b.out = b.out[:0]
	for end := b.now + d; b.now < end; {
		b.now += tickFast
		n := len(b.out)
		b.out = b.Tick(b.now, b.out)
		b.hear(b.out[:n])
	}
	return only(b.out, k)
}

func only(out []Effect, k Kind) []Effect {
	var some []Effect
	for _, e := range out {
		if e.Kind == k {
			some = append(some, e)
		}
	}
	return some
}

func TestAnAnsweredQuestionCostsNoAllocation(t *testing.T) {
	b := newBench()
	m := NewMember("m", Config{})
	b.Marked(b.now, "m", []string{"s"}, nil)
	q := Question{Call: "c", Stage: "s"}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		n, _ := b.Asks.Sent(b.now, q)
		m.Question(b.now, "owner", n, 0)
		m.Answered("owner", n)
		b.Asks.Answered(b.now, n, "m")
	}))
}

func TestASilentQuestionIsAskedAgainAndItsMembersArePinged(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "m1", []string{"s"}, nil)
	b.Marked(b.now, "m2", []string{"s"}, nil)
	b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
	require.Empty(t, b.pass(250*ms, Ask))
	require.Len(t, b.pass(150*ms, Ask), 1)
	require.Len(t, only(b.out, Ping), 2, "the group does not tell who was silent")
	b.Presence.Pong(b.now, "m2", b.now, b.now)
	again := b.pass(400*ms, Ask)
	require.Len(t, again, 1)
	require.Equal(t, "m2", again[0].To, "m1 is passed over")
	_, to := b.Asks.Sent(b.now, Question{Call: "d", Stage: "s"})
	require.Equal(t, "m2", to)
	b.Presence.Sign(b.now, "m1")
	_, to = b.Asks.Sent(b.now, Question{Call: "e", Stage: "s"})
	require.Empty(t, to, "who is heard again is asked again")
}

func TestSilenceDoesNotGrowWhileTheOwnerCannotHear(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "m1", []string{"s"}, nil)
	b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
	for range 100 { // five seconds in which no probe comes back
		b.now += tickFast
		require.Empty(t, only(b.Tick(b.now, nil), Ask))
	}
}

func TestAShownQuestionIsLeftAloneWhileListsCome(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "m1", []string{"s"}, nil)
	n, _ := b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
	for range 10 {
		b.Shown(b.now, "m1", []uint64{n}, nil, nil)
		require.Empty(t, b.pass(time.Second, Ask))
	}
	require.NotEmpty(t, b.pass(5*time.Second, Ask), "a list does not stand for ever")
}

func TestAnAbsentStageIsSkippedOrWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench()
	n, _ := b.Asks.Sent(b.now, Question{Call: "c", Stage: "s", Skip: true})
	out := b.Asks.NoResponders(b.now, n, "", nil)
	require.Equal(t, []Effect{{Kind: Wake, Call: "c", N: n, Why: Skipped}}, out)
	n, _ = b.Asks.Sent(b.now, Question{Call: "d", Stage: "s"})
	require.Empty(t, b.Asks.NoResponders(b.now, n, "", nil))
	require.NotEmpty(t, b.pass(400*ms, Ask))
	b.Asks.NoResponders(b.now, n, "", nil)
	b.Marked(b.now, "m", []string{"s"}, nil)
	require.Len(t, b.pass(tickFast, Ask), 1, "asked at once when a member appears")
}

func TestAQuestionThatKillsTwoMembersAloneIsUndeliverable(t *testing.T) {
	t.Parallel()
	b := newBench()
	for _, m := range []string{"m1", "m2", "m3"} {
		b.Marked(b.now, m, []string{"s"}, nil)
	}
	n, _ := b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
	killed := map[string]bool{}
	for range 200 {
		for _, e := range b.pass(500*ms, Ask) {
			if e.Alone {
				killed[e.To] = true
				b.Unmarked(b.now, e.To, true)
			}
		}
		for _, m := range []string{"m1", "m2", "m3"} {
			if !killed[m] {
				b.Presence.Sign(b.now, m)
			}
		}
		if w := only(b.out, Wake); len(w) > 0 {
			require.Equal(t, Undeliverable, w[0].Why)
			require.Equal(t, n, w[0].N)
			require.Len(t, only(b.out, DeadLetter), 1)
			require.Len(t, killed, 2)
			return
		}
	}
	require.Fail(t, "never undeliverable")
}

func BenchmarkQuestion(b *testing.B) {
	o, m := newBench(), NewMember("m", Config{})
	o.Marked(o.now, "m", []string{"s"}, nil)
	b.ReportAllocs()
	for b.Loop() {
		n, _ := o.Asks.Sent(o.now, Question{Call: "c", Stage: "s"})
		m.Question(o.now, "owner", n, 0)
		m.Answered("owner", n)
		o.Asks.Answered(o.now, n, "m")
	}
}

func BenchmarkWork(b *testing.B) {
	o := newBench()
	out := make([]Effect, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		out = o.Runs.Start(o.now, Target{Work: Work{"c", 1}, Class: "k", Until: o.now + time.Minute, Fresh: true}, out[:0])
		_, out = o.Runs.Outcome(o.now, Work{"c", 1}, "m", Done, false, out[:0])
		out = o.Runs.Ended(o.now, "c", out[:0])
	}
}
