package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (b *bench) deliver(count uint64, again bool) {
	b.out = b.Deliveries.Delivered(b.now, Delivery{Call: "c", Count: count, Again: again, Until: b.now + time.Minute},
		b.out[:0])
}

func TestAFirstDeliveryRunsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.deliver(1, false)
	require.Equal(t, []Effect{{Kind: Run, Call: "c", Fresh: true}}, b.out)
}

func TestALaterDeliveryIsLookedUpBeforeItRuns(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.pass(4*time.Second, Run)
	b.deliver(2, false)
	b.stored(t, GetResult, Stored{Result: Missing})
	b.stored(t, GetHeld, Stored{Result: Missing})
	require.Len(t, only(b.out, WhoOwns), 1)
	run := b.pass(2*time.Second, Run)
	require.Len(t, run, 1)
	require.False(t, run[0].Fresh)

	b = newBench()
	b.deliver(2, false)
	require.NotEmpty(t, only(b.stored(t, GetResult, Stored{Result: OK}), Ack), "it has ended")

	b = newBench()
	b.deliver(2, false)
	b.stored(t, GetResult, Stored{Result: Missing})
	b.stored(t, GetHeld, Stored{Result: Missing})
	b.Owned(b.now, Claim{Call: "c", Owner: "other", Seq: 1, Certain: true}, nil)
	require.Empty(t, b.pass(10*time.Second, Run), "its owner lives")
}

func TestAnOwnerInDoubtOffersNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.deliver(1, false)
	b.now += 20 * time.Second // stopped for longer than the ack wait
	b.out = b.Beat(b.now, b.out[:0])
	b.hear(nil)
	target := Target{Work: Work{"c", 1}, Class: "k", Until: b.now + time.Minute, Fresh: true}
	require.Empty(t, only(b.Runs.Start(b.now, target, nil), Offer), "it may ask who has the work, no more")
	b.stored(t, InProgress, Stored{Result: OK})
	b.stored(t, GetResult, Stored{Result: Missing})
	require.Len(t, only(b.out, WhoOwns), 1)
	require.Empty(t, b.pass(4*time.Second, Offer))
	b.pass(3*time.Second, GetOutcome)
	require.Len(t, only(b.stored(t, GetOutcome, Stored{Result: Missing}), Offer), 1, "nobody else has it: it goes on")
}

func TestTheResultIsStoredBeforeAnythingElseHappens(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.deliver(1, false)
	b.out = b.Deliveries.End(b.now, "c", b.now+time.Minute, b.out[:0])
	require.Len(t, b.out, 1)
	require.Empty(t, b.stored(t, PutResult, Stored{Result: Unclear}))
	b.pass(500*ms, PutResult)
	b.stored(t, PutResult, Stored{Result: Exists})
	b.stored(t, GetResult, Stored{Result: OK, Record: Record{Print: 5}})
	require.EqualValues(t, 5, only(b.out, Answer)[0].Record.Print, "the first that was stored is the end")
	require.Len(t, only(b.out, Ack), 1)
}

func TestAStoreThatIsAwayDoesNotHoldTheCallerPastTheDeadline(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.deliver(1, false)
	b.out = b.Deliveries.End(b.now, "c", b.now+time.Second, b.out[:0])
	b.Down()
	require.Len(t, b.pass(2*time.Second, Unsure), 1)
	require.Empty(t, b.pass(10*time.Second, Unsure), "said once")
}

func TestOnlyAProvedRefusalIsARefusal(t *testing.T) {
	t.Parallel()
	accept := func(key string, answers ...Result) Why {
		b := newBench()
		b.out = b.Accepts.Accept(b.now, Request{Call: "c", Key: key, Until: b.now + 20*time.Second}, b.out[:0])
		if key != "" {
			b.stored(t, PutKey, Stored{Result: OK})
		}
		for _, r := range answers {
			b.stored(t, PutCall, Stored{Result: r})
			if got := only(b.out, Receipt); len(got) > 0 {
				return got[0].Why
			}
			b.pass(700*ms, Receipt)
		}
		got := b.pass(6*time.Second, Receipt)
		require.NotEmpty(t, got)
		return got[0].Why
	}
	require.Equal(t, Refused, accept("", No))
	require.Equal(t, Refused, accept("key", No))
	require.Equal(t, Unknown, accept("", Unclear, No), "the first copy may be there")
	require.Equal(t, AskAgain, accept("key", Unclear, No))
	require.Equal(t, Accepted, accept("key", Unclear, OK))
}

func TestGoneNeedsASteadyMarkOfOnesOwn(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "m", []string{"s"}, nil)
	b.Unmarked(b.now, "m", false)
	b.pass(20*time.Second, Ping)
	require.False(t, b.Presence.Gone("m"), "an outage takes all marks at once")
	for range 10 {
		b.Presence.Refreshed(b.now)
		b.pass(3*time.Second, Ping)
	}
	require.True(t, b.Presence.Gone("m"))
	b.Presence.Sign(b.now, "m")
	require.False(t, b.Presence.Gone("m"), "who is heard again is not gone")
	b.Unmarked(b.now, "m", true)
	require.True(t, b.Presence.Gone("m"), "it said so itself")
}

// An owner with a short ack wait is certain of its calls between two marks, as one with a long ack wait is.
func TestAnOwnerIsCertainOfItsCallsWhateverTheAckWait(t *testing.T) {
	t.Parallel()
	for _, ackWait := range []time.Duration{time.Second, 2 * time.Second, 15 * time.Second, 30 * time.Second} {
		b := newBenchOf(Config{AckWait: ackWait})
		b.deliver(1, false)
		for end := b.now + 3*ackWait; b.now < end; {
			b.now += tickSlow
			b.out = b.Tick(b.now, b.out[:0])
			b.hear(nil)
			for _, e := range only(b.out, InProgress) {
				b.out = b.Stored(b.now, e, Stored{Result: OK}, b.out)
			}
			require.Empty(t, only(b.out, GetResult), "%s: nobody else can have it", ackWait)
		}
	}
}

// A call that was held goes on at once when its copy is the first: the records alone say whether it is still to be run.
// A copy that is not, or that was delivered before, is asked about first.
func TestADecidedCallGoesOnAtOnceWhereNobodyElseCanHaveIt(t *testing.T) {
	t.Parallel()
	b := newBench()
	put := only(b.Resumes.Resume(b.now, "c", 3, true, nil), PutCall)
	require.Len(t, put, 1)
	require.EqualValues(t, 4, put[0].N)
	require.False(t, put[0].Again)
	b.Resumes.Stored(put[0], Stored{Result: Unclear})
	again := b.pass(time.Second, PutCall)
	require.NotEmpty(t, again)
	require.True(t, again[0].Again, "the first copy may be there")
	later := only(b.Resumes.Resume(b.now, "d", 1, false, nil), PutCall)
	require.True(t, later[0].Again, "somebody else may have carried out the decision")

	look := func(m Delivery) *bench {
		b := newBench()
		m.Call, m.Until = "c", b.now+time.Minute
		b.out = b.Deliveries.Delivered(b.now, m, b.out[:0])
		b.stored(t, GetResult, Stored{Result: Missing})
		b.stored(t, GetHeld, Stored{Result: Missing})
		return b
	}
	b = look(Delivery{Generation: 4, Count: 1})
	require.Equal(t, []Effect{{Kind: Run, Call: "c", N: 4, At: b.now}}, b.out)
	for _, m := range []Delivery{{Generation: 4, Count: 1, Again: true}, {Generation: 4, Count: 2},
		{Generation: 4, Count: 1, Old: true}} {
		b = look(m)
		require.Empty(t, only(b.out, Run))
		require.Len(t, only(b.out, WhoOwns), 1)
	}

	b = newBench()
	b.out = b.Deliveries.Delivered(b.now, Delivery{Call: "c", Generation: 4, Count: 1, Until: b.now + time.Minute},
		b.out[:0])
	b.stored(t, GetResult, Stored{Result: Missing})
	b.now += 20 * time.Second // stopped for so long that the queue may have given it to others
	b.out = b.Beat(b.now, b.out[:0])
	b.hear(nil)
	b.stored(t, GetHeld, Stored{Result: Missing})
	require.Empty(t, only(b.out, Run))
	require.NotEmpty(t, only(b.out, WhoOwns))
}

// A call that has come further than with those who died with it starts anew with its marks.
func TestProgressDropsPoisonMarks(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.pass(4*time.Second, Run)
	b.deliver(5, false)
	b.stored(t, GetResult, Stored{Result: Missing})
	b.stored(t, GetHeld, Stored{Result: Missing})
	b.pass(1500*ms, PutMark)
	b.stored(t, PutMark, Stored{Result: Exists})
	b.stored(t, PutMark, Stored{Result: Exists})
	require.Len(t, only(b.stored(t, PutMark, Stored{Result: OK}), Run), 1)
	require.Equal(t, []Effect{{Kind: DropMarks, Call: "c", N: 3}}, b.Deliveries.Progress("c", nil))
	require.Empty(t, b.Deliveries.Progress("c", nil), "they are gone")
	require.Empty(t, b.Deliveries.Progress("other", nil))
}

// An owner in doubt does not park a call: another one may have it, and a call that is decided goes on at once.
func TestAnOwnerInDoubtParksNothing(t *testing.T) {
	t.Parallel()
	doubtful := func() *bench {
		b := newBench()
		b.deliver(1, false)
		b.now += 20 * time.Second // stopped for longer than the ack wait
		b.out = b.Beat(b.now, b.out[:0])
		b.hear(nil)
		b.out = b.Deliveries.Park(b.now, "c", b.out)
		require.Empty(t, only(b.out, PutHeld))
		b.stored(t, InProgress, Stored{Result: OK})
		b.stored(t, GetResult, Stored{Result: Missing})
		return b
	}
	b := doubtful()
	out := b.Owned(b.now, Claim{Call: "c", Owner: "other", Seq: 2, Certain: true}, nil)
	require.Equal(t, Yielded, only(out, Wake)[0].Why)
	require.Empty(t, b.pass(10*time.Second, PutHeld))
	require.Len(t, doubtful().pass(10*time.Second, PutHeld)[:1], 1, "nobody else has it: it is parked")
}

// The next owner of a call may have it before the store tells this process that it is in the queue again.
func TestACallThatIsHandedBackIsNotClaimed(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.deliver(1, false)
	require.NotEmpty(t, only(b.Deliveries.WhoOwns(b.now, "c", "other", 1, nil), Owns), "it runs here")
	require.Len(t, only(b.Deliveries.HandBack(b.now, "c", nil), PutCall), 1)
	require.Empty(t, only(b.Deliveries.WhoOwns(b.now, "c", "other", 1, nil), Owns))
}
