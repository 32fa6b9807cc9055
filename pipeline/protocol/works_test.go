package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newMember(now time.Duration) *Member {
	m := NewMember("m", Config{QueueCapacity: 1, KeepBytes: 10})
	m.Works.Serve("k", 1)
	for _, e := range only(m.Up(now, nil), Probe) {
		m.Hearing.Probed(e.At)
	}
	return m
}

func offer(call string, now time.Duration) Offered {
	return Offered{Work: Work{call, 1}, Owner: "o", Class: "k", Seq: 1, Sent: now, Until: now + time.Minute}
}

func TestAMemberStartsQueuesAndIsBusy(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	require.Len(t, only(m.Works.Offered(now, offer("a", now), nil), Start), 1)
	require.Empty(t, m.Works.Offered(now, offer("b", now), nil))
	require.Len(t, only(m.Works.Offered(now, offer("c", now), nil), Busy), 1)
	out := m.Works.Ended(now, Work{"a", 1}, Done, 1, nil)
	require.Equal(t, "b", only(out, Start)[0].Call)
	require.Len(t, only(out, Outcome), 1)
	require.Empty(t, m.Works.Offered(now, offer("a", now), nil)[1:], "a kept outcome is sent again, and nothing starts")
	m.Works.Confirmed(now, Work{"a", 1}, nil)
	require.Empty(t, m.Works.Offered(now, offer("a", now), nil), "confirmed work is not taken again")
}

func TestAMemberRefusesWhatIsLate(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	require.Empty(t, m.Works.Offered(now+time.Second, offer("a", now), nil))
	require.False(t, only(m.Works.WhoHas(now, Work{"b", 1}, "o", 1, nil), Has)[0].Yes)
	require.Empty(t, m.Works.Offered(now, offer("b", now), nil), "who said no takes no earlier offer")
	m.Presence.Marked(now, "o", nil, nil)
	m.Presence.Pong(now, "o", now, now-time.Minute) // the owner's clock is a minute behind
	require.Len(t, only(m.Works.Offered(now, offer("c", now-time.Minute), nil), Start), 1)
}

func TestAMemberThatWasStoppedDropsWhatItHasNotBegun(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	m.Works.Offered(now, offer("a", now), nil)
	m.Works.Offered(now, offer("b", now), nil)
	out := m.Tick(now+5*time.Second, nil)
	require.Equal(t, "b", only(out, Drop)[0].Call)
	require.Empty(t, m.Works.Offered(now+5*time.Second, offer("d", now+5*time.Second), nil), "it may be old")
}

func TestWorkThatMustNotRunTwiceBeginsWithItsOwnRecord(t *testing.T) {
	t.Parallel()
	now := time.Hour
	begin := func() (*Member, Effect) {
		m := newMember(now)
		f := offer("a", now)
		f.Once = true
		out := m.Works.Offered(now, f, nil)
		require.Empty(t, only(out, Start))
		return m, only(out, PutBegun)[0]
	}
	m, put := begin()
	require.Len(t, only(m.Works.Stored(now, put, Stored{Result: OK}, nil), Start), 1)

	m, put = begin()
	get := only(m.Works.Stored(now, put, Stored{Result: Exists}, nil), GetBegun)[0]
	own := Record{State: Begun, By: "m", Nonce: put.Nonce}
	require.Len(t, only(m.Works.Stored(now, get, Stored{Result: OK, Record: own}, nil), Start), 1)

	m, put = begin()
	get = only(m.Works.Stored(now, put, Stored{Result: Exists}, nil), GetBegun)[0]
	other := Record{State: Begun, By: "n", Nonce: put.Nonce}
	require.Empty(t, only(m.Works.Stored(now, get, Stored{Result: OK, Record: other}, nil), Start))

	m, put = begin()
	out := m.Works.Stored(now+1100*ms, put, Stored{Result: OK, Record: Record{Rev: 3}}, nil)
	require.Empty(t, only(out, Start), "too late: its owner has given up")
	require.Equal(t, NotRun, only(out, SetBegun)[0].State)
}

func TestAMemberTellsOfEachEndWhileSomebodyMayWait(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	m.Works.Offered(now, offer("a", now), nil)
	m.Works.Offered(now, offer("b", now), nil)
	require.Len(t, only(m.Works.Ended(now, Work{"a", 1}, Done, 1, nil), Free), 1)
	free := only(m.Works.Ended(now, Work{"b", 1}, Done, 1, nil), Free)
	require.Len(t, free, 1, "the offer that the first one called for is not here yet")
	require.EqualValues(t, 2, free[0].Free)
	later := now + 2*time.Second
	m.Works.Offered(later, offer("c", later), nil)
	require.Empty(t, only(m.Works.Ended(later, Work{"c", 1}, Done, 1, nil), Free), "nobody has been refused for long")
}

// ended has work of so many bytes come to its end.
func ended(t *testing.T, m *Member, now time.Duration, f Offered, bytes int) []Effect {
	t.Helper()
	out := m.Works.Offered(now, f, nil)
	if f.Once {
		put := only(out, PutBegun)
		require.Len(t, put, 1)
		require.Len(t, only(m.Works.Stored(now, put[0], Stored{Result: OK, Record: Record{Rev: 1}}, nil), Start), 1)
		set := only(m.Works.Ended(now, f.Work, Done, bytes, nil), SetBegun)
		require.Len(t, set, 1)
		return m.Works.Stored(now, set[0], Stored{Result: OK, Record: Record{Rev: 2}}, nil)
	}
	require.Len(t, only(out, Start), 1)
	return m.Works.Ended(now, f.Work, Done, bytes, nil)
}

func TestOutcomesBeyondTheBoundLeaveMemoryOldestFirst(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now) // it keeps 10 bytes
	ended(t, m, now, offer("a", now), 4)
	ended(t, m, now+1, offer("b", now), 4)
	once := offer("c", now)
	once.Once = true
	require.Empty(t, only(ended(t, m, now+2, once, 2), PutOutcome), "the bound is not passed yet")
	out := ended(t, m, now+3, offer("d", now), 9)
	spilled := only(out, PutOutcome)
	require.Len(t, spilled, 2, "until what stays is within the bound")
	require.Equal(t, "a", spilled[0].Call)
	require.Equal(t, "b", spilled[1].Call)
	require.Equal(t, "c", only(out, Drop)[0].Call, "its record holds it")
	m.Works.Stored(now, spilled[0], Stored{Result: OK}, nil)
	m.Works.Stored(now, spilled[1], Stored{Result: OK}, nil)
	require.Equal(t, 9, m.Works.bytes)
}

func TestAMemberThatCannotGetRidOfOutcomesTakesNoMoreWork(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	out := ended(t, m, now, offer("a", now), 25)
	spill := only(out, PutOutcome)
	require.Len(t, spill, 1)
	m.Works.Stored(now, spill[0], Stored{Result: No}, nil)
	require.Len(t, only(m.Works.Offered(now, offer("b", now), nil), Busy), 1)
	require.Empty(t, only(m.Works.tick(now+time.Second, nil), Free))
	m.Works.Confirmed(now, Work{"a", 1}, nil)
	free := only(m.Works.tick(now+2*time.Second, nil), Free)
	require.Len(t, free, 1, "whoever waits hears that there is room again")
	require.Len(t, only(m.Works.Offered(now, offer("b", now), nil), Start), 1)
}

func TestTheRecordOfWorkIsLetGoWhenItsCallHasEnded(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	f := offer("a", now)
	f.Once, f.Tenant = true, "t"
	require.Empty(t, only(ended(t, m, now, f, 1), Expire))
	go1 := only(m.Works.Confirmed(now, f.Work, nil), Expire)
	require.Len(t, go1, 1)
	require.Equal(t, Effect{Kind: Expire, Call: "a", N: 1, Group: "t", State: Done, By: "m", Nonce: go1[0].Nonce, Rev: 2,
		Until: now + time.Minute}, go1[0])

	b := newBench()
	b.start(true)
	b.out = b.Runs.GiveUp(b.now, "c", Cancelled, b.out[:0])
	b.stored(t, PutBegun, Stored{Result: OK, Record: Record{State: Void, By: "owner", Last: true, Rev: 9}})
	go2 := only(b.Runs.Ended(b.now, "c", nil), Expire)
	require.Len(t, go2, 1, "the owner's own last record, too")
	require.EqualValues(t, 9, go2[0].Rev)
	require.True(t, go2[0].Last)
}

func TestAClaimWhoseAnswerIsLostIsReadInTimeToBegin(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := newMember(now)
	f := offer("a", now)
	f.Once = true
	put := only(m.Works.Offered(now, f, nil), PutBegun)[0]
	get := only(m.Works.Stored(now+400*ms, put, Stored{Result: Unclear}, nil), GetBegun)
	require.Len(t, get, 1)
	own := Record{State: Begun, By: "m", Nonce: put.Nonce, Rev: 1}
	require.Len(t, only(m.Works.Stored(now+500*ms, get[0], Stored{Result: OK, Record: own}, nil), Start), 1)
}

func TestClassesThatShareSlotsTakeTurnsAndBeginNothingWithoutOne(t *testing.T) {
	t.Parallel()
	now := time.Hour
	m := NewMember("m", Config{QueueCapacity: 3})
	m.Works.ServeWith("a", 1, "both")
	m.Works.ServeWith("b", 1, "both")
	for _, e := range only(m.Up(now, nil), Probe) {
		m.Hearing.Probed(e.At)
	}
	offered := func(call string) []Effect {
		f := offer(call, now)
		f.Class, f.Once = call[:1], true
		return m.Works.Offered(now, f, nil)
	}
	begun := only(offered("a1"), PutBegun)
	require.Len(t, begun, 1)
	for _, call := range []string{"a2", "a3", "b1", "b2"} {
		require.Empty(t, offered(call), "no record says that it has begun before it has a slot")
	}
	var order []string
	for range 4 {
		require.Len(t, only(m.Works.Stored(now, begun[0], Stored{Result: OK, Record: Record{Rev: 1}}, nil), Start), 1)
		out := m.Works.Ended(now, Work{begun[0].Call, 1}, Done, 1, nil)
		begun = only(out, PutBegun)
		require.Len(t, begun, 1)
		order = append(order, begun[0].Call)
	}
	require.Equal(t, []string{"a2", "b1", "a3", "b2"}, order)
}
