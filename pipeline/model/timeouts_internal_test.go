package model

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

func TestShareOfTheTime(t *testing.T) { // (FO-2)
	t.Parallel()
	const least = 30 * time.Second
	for _, tt := range []struct {
		left     time.Duration
		standbys int
		want     time.Duration
		bound    bool
	}{
		{10 * time.Minute, 3, 150 * time.Second, true},
		{10 * time.Minute, 1, 5 * time.Minute, true},
		{10 * time.Minute, 0, 0, false},
		{80 * time.Second, 3, 30 * time.Second, true},
		{60 * time.Second, 3, 30 * time.Second, true},
		{20 * time.Second, 3, 10 * time.Second, true},
		{2 * time.Second, 1, time.Second, true},
		{1900 * time.Millisecond, 1, 0, false},
		{-time.Second, 3, 0, false},
	} {
		d, ok := share(tt.left, tt.standbys, least)
		require.Equal(t, tt.bound, ok, "%+v", tt)
		require.Equal(t, tt.want, d, "%+v", tt)
	}
}

func TestPatienceEnds(t *testing.T) { // (FO-1)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, p := &patience{}, Provider{Name: "up"}
		asked := func(d time.Duration) *messages.Fault {
			f := messages.NewFault(messages.ProviderLimited, "slow down")
			f.RetryAfter = d
			return f
		}
		require.Nil(t, m.refuses(p, "a"))
		m.learn(p, "a", asked(10*time.Second))
		f := m.refuses(p, "a")
		require.NotNil(t, f)
		require.Equal(t, messages.ProviderLimited, f.Code)
		require.Equal(t, 10*time.Second, f.RetryAfter)
		require.True(t, f.Unsent)
		require.Nil(t, m.refuses(p, "b"), "for other calls only the model that was refused is out")
		require.Nil(t, m.refuses(Provider{Name: "other"}, "a"))
		m.learn(p, "a", f)
		<-time.After(10 * time.Second)
		require.Nil(t, m.refuses(p, "a"), "its own refusal does not make it longer")
		m.learn(p, "a", asked(24*time.Hour))
		<-time.After(mostPatience)
		require.Nil(t, m.refuses(p, "a"), "a wrong date does not shut a model out for long")
	})
}

func TestClockFiresOnlyWhenItIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, k := newClock(t.Context())
		why := messages.NewFault(messages.ProviderTimeout, "late")
		k.set(time.Second, func() *messages.Fault { return why })
		<-time.After(999 * time.Millisecond)
		k.set(time.Second, func() *messages.Fault { return why })
		<-time.After(999 * time.Millisecond)
		k.halt()
		k.fire() // as if it had waited for the lock
		require.NoError(t, ctx.Err())
		k.set(time.Second, func() *messages.Fault { return why })
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, error(why), ended(ctx))
		k.end()
	})
}
