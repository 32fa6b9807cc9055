package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (b *bench) start(once bool) Target {
	t := Target{Work: Work{"c", 1}, Class: "k", Tenant: "t", Once: once, Until: b.now + time.Minute, Fresh: true}
	b.out = b.Runs.Start(b.now, t, b.out[:0])
	return t
}

// stored answers the last effect of the kind.
func (b *bench) stored(t *testing.T, k Kind, st Stored) []Effect {
	t.Helper()
	some := only(b.out, k)
	require.NotEmpty(t, some)
	b.out = b.Stored(b.now, some[len(some)-1], st, b.out[:0])
	return b.out
}

func TestASilentOfferIsAskedAboutBeforeItIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.pass(4*time.Second, Offer)
	b.start(false)
	require.Len(t, only(b.out, Offer), 1)
	require.Empty(t, b.pass(900*ms, WhoHas))
	require.NotEmpty(t, b.pass(600*ms, WhoHas))
	require.Empty(t, only(b.out, Offer))
	require.NotEmpty(t, b.pass(1500*ms, GetOutcome), "nobody said that they have it")
	require.Len(t, only(b.stored(t, GetOutcome, Stored{Result: Missing}), Offer), 1)
}

func TestWorkThatAMemberHasIsNotOfferedAgain(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.start(false)
	for range 30 {
		b.Shown(b.now, "m", nil, []Work{{"c", 1}}, nil)
		require.Empty(t, b.pass(time.Second, Offer))
	}
	final, _ := b.Runs.Outcome(b.now, Work{"c", 1}, "m", Done, false, nil)
	require.True(t, final)
	final, _ = b.Runs.Outcome(b.now, Work{"c", 1}, "m", Done, false, nil)
	require.False(t, final, "the second copy of an outcome is nobody's")
	out := b.Runs.Ended(b.now, "c", nil)
	require.Equal(t, []Effect{{Kind: Confirm, Call: "c", To: "m", N: 1}}, out)
	_, out = b.Runs.Outcome(b.now, Work{"c", 1}, "m", Done, false, nil)
	require.Len(t, only(out, Confirm), 1, "a member that did not hear the confirmation gets it again")
}

// copyOf has a copy made of work that another owner had offered, and the member "copy" show it.
func (b *bench) copyOf(t *testing.T) Work {
	t.Helper()
	b.pass(4*time.Second, Offer)
	target := Target{Work: Work{"c", 1}, Class: "k", Until: b.now + time.Minute}
	b.out = b.Runs.Start(b.now, target, b.out[:0])
	require.NotEmpty(t, b.pass(1200*ms, GetOutcome))
	require.Len(t, only(b.stored(t, GetOutcome, Stored{Result: Missing}), Offer), 1)
	b.Shown(b.now, "copy", nil, []Work{target.Work}, nil)
	return target.Work
}

func TestACopyIsTakenBackWhenTheFirstOutcomeIsFound(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.copyOf(t)
	require.NotEmpty(t, b.pass(3200*ms, GetOutcome))
	require.NotEmpty(t, only(b.out, WhoHas))
	b.stored(t, GetOutcome, Stored{Result: OK, Record: Record{State: Done}})
	require.Equal(t, "copy", only(b.out, Cancel)[0].To)
	require.Equal(t, Ended, only(b.out, Wake)[0].Why)
}

func TestACopyGivesWayToWhoHadTheWorkBefore(t *testing.T) {
	t.Parallel()
	b := newBench()
	w := b.copyOf(t)
	out := b.Runs.Has(b.now, w, "first", true, nil)
	require.Equal(t, "copy", only(out, Cancel)[0].To)
	out = b.Shown(b.now, "copy", nil, []Work{w}, nil)
	require.Equal(t, "copy", only(out, Cancel)[0].To, "its list was on the way")
	b.Shown(b.now, "first", nil, []Work{w}, nil)
	require.Empty(t, b.pass(3200*ms, GetOutcome), "it is no copy")
}

func TestNoClockOfLostWorkRunsRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.pass(5*time.Second, Offer)
	b.start(false)
	b.Down()
	b.pass(20*time.Second, Offer)
	b.out = b.Up(b.now, b.out[:0])
	b.hear(nil)
	b.pass(3*time.Second, WhoHas)
	require.Empty(t, only(b.out, WhoHas))
	require.NotEmpty(t, b.pass(2500*ms, WhoHas))
}

func TestGivingUpWorkThatNobodyBeganSaysSoWithALastVoid(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.start(true)
	b.out = b.Runs.GiveUp(b.now, "c", Deadline, b.out[:0])
	void := only(b.out, PutBegun)[0]
	require.True(t, void.Last)
	require.Equal(t, Void, void.State)
	wake := only(b.stored(t, PutBegun, Stored{Result: OK}), Wake)
	require.Equal(t, NotExecuted, wake[0].Why)
}

func TestGivingUpWorkThatHasBegunIsUnknownAtTheDeadline(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.start(true)
	b.out = b.Runs.GiveUp(b.now, "c", Deadline, b.out[:0])
	b.stored(t, PutBegun, Stored{Result: Exists})
	wake := only(b.stored(t, GetBegun, Stored{Result: OK, Record: Record{State: Begun, By: "m", Rev: 7}}), Wake)
	require.Equal(t, Unknown, wake[0].Why)
}

func TestAnUnreadableStoreDoesNotHoldTheCallerPastTheDeadline(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.start(true)
	b.out = b.Runs.GiveUp(b.now, "c", Deadline, b.out[:0])
	b.stored(t, PutBegun, Stored{Result: Unclear})
	wake := b.pass(1300*ms, Wake)
	require.Len(t, wake, 1)
	require.Equal(t, Unknown, wake[0].Why)
}

func TestBegunWorkIsLostOnlyWhenItsMemberSaysSoOrIsGone(t *testing.T) {
	t.Parallel()
	b := newBench()
	target := b.start(true)
	target.Fresh = false
	b.out = b.Runs.Start(b.now, target, b.out[:0])
	b.stored(t, GetBegun, Stored{Result: OK, Record: Record{State: Begun, By: "m", Rev: 7}})
	require.Empty(t, b.pass(20*time.Second, SetBegun), "who says nothing may still do it")
	b.out = b.Runs.Has(b.now, Work{"c", 1}, "m", false, b.out[:0])
	lost := only(b.out, SetBegun)[0]
	require.Equal(t, Lost, lost.State)
	require.EqualValues(t, 7, lost.Rev)
	b.stored(t, SetBegun, Stored{Result: Exists})
	wake := only(b.stored(t, GetBegun, Stored{Result: OK, Record: Record{State: Done, By: "m"}}), Wake)
	require.Equal(t, Ended, wake[0].Why, "who loses the write takes what is stored")
}

func TestALineIsFairBetweenTenants(t *testing.T) {
	t.Parallel()
	l := newLine("k")
	for _, name := range []string{"a1", "a2", "a3", "b1", "c1"} {
		l.join(&run{spec: Target{Work: Work{Call: name}, Tenant: name[:1]}})
	}
	var order []string
	for r := l.next(); r != nil; r = l.next() {
		order = append(order, r.spec.Call)
	}
	require.Equal(t, []string{"a1", "b1", "c1", "a2", "a3"}, order)
	require.Zero(t, l.length())
}

func TestFullClassesMakeALineAndDoNotStopOthers(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.start(false)
	b.Runs.Busy(b.now, Work{"c", 1}, 1, "m", nil)
	full := Target{Work: Work{"d", 1}, Class: "k", Until: b.now + time.Minute, Fresh: true}
	require.Empty(t, b.Runs.Start(b.now, full, nil), "it waits in line")
	other := Target{Work: Work{"e", 1}, Class: "other", Until: b.now + time.Minute, Fresh: true}
	require.Len(t, b.Runs.Start(b.now, other, nil), 1)
	out := b.Runs.Free(b.now, "k", "m", 1, nil)
	require.Len(t, out, 1)
	require.Equal(t, "c", out[0].Call)
	require.Equal(t, "m", out[0].To)
	for range 350 {
		for _, e := range b.pass(100*ms, Offer) {
			if e.Call == "d" {
				b.out = b.Runs.Busy(b.now, Work{"d", 1}, e.Seq, "m", b.out)
			}
		}
		if refused := only(b.out, Wake); len(refused) > 0 {
			require.Equal(t, Overloaded, refused[0].Why)
			return
		}
	}
	require.Fail(t, "d waits longer than anybody shall")
}
