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
