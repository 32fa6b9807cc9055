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
