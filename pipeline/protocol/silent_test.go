package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// standsStill brings an owner to where one of the group's members has not answered for so long that its mark has ended.
func standsStill(group string, silent string, others ...string) *bench {
	b := newBench()
	for _, m := range append(others, silent) {
		b.Marked(b.now, m, []string{group}, nil)
	}
	b.Presence.Suspect(b.now, silent, nil)
	for range 20 {
		for _, m := range others {
			b.Presence.Sign(b.now, m)
		}
		b.Presence.Refreshed(b.now)
		b.pass(time.Second, Ask)
	}
	b.Unmarked(b.now, silent, false)
	return b
}

// asks sends so many questions and counts whom they went to; "" is the group.
func (b *bench) asks(n int) map[string]int {
	to := map[string]int{}
	for range n {
		n, whom := b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
		b.Asks.Answered(b.now, n, "b")
		to[whom]++
	}
	return to
}

func pinged(out []Effect) (names []string) {
	for _, e := range out {
		names = append(names, e.To)
	}
	return names
}

// The server goes on to give questions to a process that stands still, also when its mark has ended: others are asked
// by name, in turn, until it is heard or the server says that it does not listen any more.
func TestTheEndOfASilentMembersMarkBringsItNoQuestions(t *testing.T) {
	t.Parallel()
	ends := map[string]func(b *bench){
		"it is heard":             func(b *bench) { b.Presence.Pong(b.now, "a", b.now, b.now) },
		"it does not listen":      func(b *bench) { b.Presence.PassOver(b.now, "a") },
		"it has deleted its mark": func(b *bench) { b.Unmarked(b.now, "a", true) },
	}
	for name, ends := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := standsStill("s", "a", "b", "c")
			require.Equal(t, map[string]int{"b": 5, "c": 5}, b.asks(10))
			for range 60 { // it is gone, and the server still takes it for a subscriber
				b.Presence.Sign(b.now, "b")
				b.Presence.Sign(b.now, "c")
				b.Presence.Refreshed(b.now)
				b.pass(time.Second, Ask)
			}
			require.True(t, b.Presence.Gone("a"))
			require.Equal(t, map[string]int{"b": 5, "c": 5}, b.asks(10))
			require.Len(t, b.pass(10*time.Second, Ping), 2, "it is asked now and then whether it listens")
			ends(b)
			require.Equal(t, map[string]int{"": 10}, b.asks(10))
		})
	}
}

// Where all are passed over, those that were heard a moment ago are asked, not one that stands still.
func TestASlowMemberIsAskedBeforeOneThatStandsStill(t *testing.T) {
	t.Parallel()
	b := standsStill("s", "a", "b")
	b.Marked(b.now, "a", []string{"s"}, nil)
	b.Presence.Sign(b.now, "b")
	b.Presence.Suspect(b.now, "b", nil)
	b.pass(500*ms, Ask)
	require.False(t, b.Presence.Alive("b"))
	require.Equal(t, "b", b.Asks.group("s").route(b.now, b.Presence, ""))
	require.Empty(t, b.Asks.group("s").route(b.now, b.Presence, "b"))
	b.pass(listStands, Ask)
	require.Empty(t, b.Asks.group("s").route(b.now, b.Presence, ""), "all are silent")
}

// A member that leaves an offer without a sign is pinged, and gets no other until it is heard.
func TestAMemberThatStandsStillGetsNoWork(t *testing.T) {
	t.Parallel()
	b := newBench()
	for _, m := range []string{"a", "b", "c"} {
		b.Marked(b.now, m, []string{"k"}, nil)
	}
	b.pass(4*time.Second, Offer)
	offered := func(call string) string {
		work := Target{Work: Work{call, 1}, Class: "k", Until: b.now + time.Minute, Fresh: true}
		return only(b.Runs.Start(b.now, work, nil), Offer)[0].To
	}
	require.Empty(t, offered("c1"), "the class shares the work")
	require.Subset(t, pinged(b.pass(1500*ms, Ping)), []string{"a", "b", "c"})
	for _, m := range []string{"b", "c"} {
		b.Presence.Pong(b.now, m, b.now, b.now)
	}
	b.pass(500*ms, Offer)
	require.ElementsMatch(t, []string{"b", "c"}, []string{offered("c2"), offered("c3")})
	b.Unmarked(b.now, "a", false)
	require.ElementsMatch(t, []string{"b", "c"}, []string{offered("c4"), offered("c5")})
	b.Presence.PassOver(b.now, "a")
	require.Empty(t, offered("c6"))
}

// The next offers do not go to who has not even said that it has the last one.
func TestASilentOfferHasItsMembersPinged(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.pass(4*time.Second, Offer)
	for _, m := range []string{"still", "well"} {
		b.Marked(b.now, m, []string{"k"}, nil)
	}
	require.Empty(t, only(b.target("1", "t"), Offer)[0].To, "the class shares the work")
	for end := b.now + 900*ms; b.now < end; {
		for _, e := range b.pass(tickFast, Ping) {
			if e.To == "well" {
				b.Presence.Pong(b.now, "well", e.At, b.now)
			}
		}
	}
	for _, call := range []string{"2", "3", "4"} {
		require.Equal(t, "well", only(b.target(call, "t"), Offer)[0].To)
	}
}

// A process may have subscribed and been lost before it left a mark.
func TestAQuestionThatOnlyThisProcessShouldHaveIsAskedAgainIfItDoesNot(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Marked(b.now, "owner", []string{"s"}, nil)
	lost, _ := b.Asks.Sent(b.now, Question{Call: "lost", Stage: "s", Local: true})
	slow, _ := b.Asks.Sent(b.now, Question{Call: "slow", Stage: "s", Local: true})
	again := 0
	for range 10 {
		for _, e := range b.pass(500*ms, Ask) {
			require.Equal(t, lost, e.N)
			again++
		}
		b.Shown(b.now, "owner", []uint64{slow}, nil, nil)
	}
	require.Positive(t, again)
}

// A process has two marks, one as an owner and one as a member, and either may be seen first.
func TestAMemberIsKnownWhicheverOfItsMarksComesFirst(t *testing.T) {
	t.Parallel()
	b := newBench()
	n, _ := b.Asks.Sent(b.now, Question{Call: "c", Stage: "s"})
	b.Marked(b.now, "m", nil, nil)
	b.Asks.NoResponders(b.now, n, "", nil)
	b.Marked(b.now, "m", []string{"s"}, nil)
	require.Len(t, b.pass(tickFast, Ask), 1, "asked at once")
}
