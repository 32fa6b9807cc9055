package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// target starts work of a tenant in class k and returns what follows.
func (b *bench) target(call, tenant string) []Effect {
	t := Target{Work: Work{call, 1}, Class: "k", Tenant: tenant, Until: b.now + time.Minute, Fresh: true}
	return b.Runs.Start(b.now, t, nil)
}

// busy answers the call's first offer with Busy.
func (b *bench) busy(call, member string, seq uint64) []Effect {
	return b.Runs.Busy(b.now, Work{call, 1}, seq, member, nil)
}

// full fills class k with n calls that its member holds, and puts one more in line.
func (b *bench) full(n int) {
	for i := range n {
		call := fmt.Sprint("held", i)
		b.target(call, "x")
		b.Runs.Chunk(b.now, Work{call, 1}, "m", false, nil)
	}
	b.target("first", "x")
	b.busy("first", "m", 1)
}

func TestABusyMemberIsPassedByWhileAnotherHasRoom(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "a", []string{"k"}, nil)
	b.Marked(b.now, "b", []string{"k"}, nil)
	require.Empty(t, b.target("1", "t")[0].To, "the group shares work while nobody is busy")
	again := only(b.busy("1", "a", 1), Offer)
	require.Len(t, again, 1)
	require.Equal(t, "b", again[0].To)
	require.Equal(t, "b", b.target("2", "t")[0].To, "who is busy is not asked")
	require.Empty(t, b.busy("1", "b", 2), "all are busy: it waits in line")
	require.Empty(t, b.target("3", "t"), "and so does the next")
	out := b.Runs.Free(b.now, "k", "a", 2, nil)
	require.Equal(t, []string{"1", "3"}, []string{out[0].Call, out[1].Call})
	require.Equal(t, "a", out[0].To)
}

func TestWhatComesBackFromABusyMemberStandsWhereItStood(t *testing.T) {
	t.Parallel()
	b := newBench()
	for _, call := range []string{"1", "2", "3", "4"} {
		b.target(call, "t")
	}
	b.target("other", "u")
	for _, call := range []string{"3", "1", "4", "2", "other"} {
		b.busy(call, "m", 1)
	}
	var order []string
	for _, e := range b.Runs.Free(b.now, "k", "m", 10, nil) {
		order = append(order, e.Call)
	}
	require.Equal(t, []string{"1", "other", "2", "3", "4"}, order)
}

func TestAClassThatDoesNotMoveRefusesByTheWaitThatItWillTake(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.full(10)
	b.now += 5 * time.Second // one takes 5 s at least, and ten run at once
	var refused Effect
	joined := 0
	for i := 0; refused.Kind == 0 && i < 1000; i++ {
		if wake := only(b.target(fmt.Sprint("t", i), "t"), Wake); len(wake) > 0 {
			refused = wake[0]
		} else {
			joined++
		}
	}
	require.Equal(t, Overloaded, refused.Why)
	require.InDelta(t, 60, joined, 3, "30 s are waited at most")
	require.EqualValues(t, joined+1, refused.Waiting, "those of its tenant, and one of another")
	require.InDelta(t, 30*time.Second, refused.At, float64(time.Second))
	require.Empty(t, only(b.target("u", "u"), Wake), "another tenant's first call waits for its turn, not for all (BU-9)")
	b.now += 20 * time.Second
	require.Len(t, only(b.target("v", "t"), Wake), 1)
}

func TestAnIdleClassIsNotTakenForASlowOne(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.target("a", "t")
	b.Runs.Outcome(b.now+time.Second, Work{"a", 1}, "m", Done, false, nil)
	b.now += time.Hour
	b.full(4)
	b.Runs.Outcome(b.now+time.Second, Work{"held0", 1}, "m", Done, false, nil)
	b.now += time.Second
	for i := range 40 {
		require.Empty(t, only(b.target(fmt.Sprint(i), "t"), Wake), "work takes a second: the hour without any says nothing")
	}
}

func TestALineThatAllHaveLeftHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.full(1)
	for i := range 100 {
		b.target(fmt.Sprint(i), "t")
	}
	for i := range 100 {
		b.Runs.GiveUp(b.now, fmt.Sprint(i), Cancelled, nil)
		b.Runs.Ended(b.now, fmt.Sprint(i), nil)
	}
	b.Runs.GiveUp(b.now, "first", Cancelled, nil)
	l := b.Runs.line("k")
	require.Zero(t, l.length())
	require.Equal(t, 1, l.out)
	b.Runs.Free(b.now, "k", "m", 1, nil)
	require.Len(t, only(b.target("next", "t"), Offer), 1)
}

func TestAMembersQueueIsInTurnBetweenTenants(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := NewMember("m", Config{QueueCapacity: 4})
	m.Works.Serve("k", 1)
	for _, e := range only(m.Up(now, nil), Probe) {
		m.Hearing.Probed(e.At)
	}
	for _, call := range []string{"a0", "a1", "a2", "a3", "b1"} {
		f := offer(call, now)
		f.Tenant = call[:1]
		m.Works.Offered(now, f, nil)
	}
	var order []string
	run := "a0"
	for range 4 {
		run = only(m.Works.Ended(now, Work{run, 1}, Done, 1, nil), Start)[0].Call
		order = append(order, run)
	}
	require.Equal(t, []string{"a1", "b1", "a2", "a3"}, order)
}

func TestALongLineIsNotOfferedToAMemberThatHasRoomForOne(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "m", []string{"k"}, nil)
	b.full(1)
	for i := range 100 {
		b.target(fmt.Sprint(i), "t")
	}
	require.Len(t, b.Runs.Free(b.now, "k", "m", 1, nil), 1)
	require.Empty(t, b.pass(900*ms, Offer))
	require.Len(t, b.pass(400*ms, Offer), 1, "one tries whether there is room, in case nobody says so")
}

func TestPartsOfOtherCallsStandBeforeAllThatBeginSomethingNew(t *testing.T) {
	t.Parallel()
	l := newLine("k")
	named := func(name string, child bool) *run {
		return &run{spec: Target{Work: Work{Call: name}, Tenant: name[:1], Child: child}}
	}
	for _, name := range []string{"a1", "b1", "a2"} {
		l.join(named(name, false))
	}
	l.join(named("a3", true))
	back := named("a4", true)
	l.join(back)
	l.leave(back)
	l.join(back)
	var order []string
	for r := l.next(); r != nil; r = l.next() {
		order = append(order, r.spec.Call)
	}
	require.Equal(t, []string{"a3", "a4", "a1", "b1", "a2"}, order)
}
