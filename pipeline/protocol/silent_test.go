package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// frozenOfTwo is an owner that shares work and questions between "well", which answers every ping, and "frozen", which
// answers none and got the first offer. Its mark ends as it does on a server.
func frozenOfTwo(t *testing.T) *bench {
	t.Helper()
	b := newBench()
	b.pass(4*time.Second, Offer)
	for _, m := range []string{"frozen", "well"} {
		b.Marked(b.now, m, []string{"k", "s"}, nil)
	}
	require.Empty(t, only(b.target("1", "t"), Offer)[0].To, "the class shares the work")
	return b
}

// wellFor lets time pass in which the well member answers pings.
func (b *bench) wellFor(d time.Duration) {
	for end := b.now + d; b.now < end; {
		for _, e := range b.pass(tickFast, Ping) {
			if e.To == "well" {
				b.Presence.Pong(b.now, "well", e.At, b.now)
			}
		}
	}
}

func TestASilentOfferHasItsMembersPingedAndWhoIsSilentGetsNoMore(t *testing.T) {
	t.Parallel()
	b := frozenOfTwo(t)
	b.wellFor(900 * ms)
	for _, call := range []string{"2", "3", "4"} {
		require.Equal(t, "well", only(b.target(call, "t"), Offer)[0].To)
	}
	b.Presence.Sign(b.now, "frozen")
	require.Empty(t, only(b.target("5", "t"), Offer)[0].To, "who is heard again gets its share")
}

// A frozen process keeps its subscriptions when its mark has ended, so the server still gives it its share.
func TestWhoIsSilentIsPassedOverAfterItsMarkHasEnded(t *testing.T) {
	t.Parallel()
	b := frozenOfTwo(t)
	b.wellFor(10 * time.Second)
	b.Marked(b.now, "frozen", nil, nil) // of two marks the member's ends first
	b.Unmarked(b.now, "frozen", false)
	b.wellFor(30 * time.Second)
	require.Equal(t, "well", only(b.target("2", "t"), Offer)[0].To)
	_, to := b.Asks.Sent(b.now, Question{Call: "2", Stage: "s"})
	require.Equal(t, "well", to)
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

func TestWhoHasNoSubscriptionsLeftIsNoReasonToPassByTheGroup(t *testing.T) {
	t.Parallel()
	b := frozenOfTwo(t)
	b.wellFor(900 * ms)
	b.Presence.PassOver(b.now, "frozen")
	require.Empty(t, only(b.target("2", "t"), Offer)[0].To)
	_, to := b.Asks.Sent(b.now, Question{Call: "2", Stage: "s"})
	require.Empty(t, to)
	b.Marked(b.now, "frozen", []string{"k", "s"}, nil)
	require.Equal(t, "well", only(b.target("3", "t"), Offer)[0].To, "it has a mark again, and was not heard yet")
}
