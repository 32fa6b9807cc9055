package inflight_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/inflight"
)

func TestWaitSeesWhatBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g inflight.Group
		g.Wait() // nothing is under way
		first := g.Begin()
		done := false
		go func() { g.Wait(); done = true }()
		synctest.Wait()
		second := g.Begin()
		first()
		synctest.Wait()
		require.False(t, done, "the second is still under way")
		second()
		synctest.Wait()
		require.True(t, done)
	})
}

func TestWaitForGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g inflight.Group
		end := g.Begin()
		begin := time.Now()
		g.WaitFor(time.Second)
		require.Equal(t, time.Second, time.Since(begin))
		end()
		g.WaitFor(time.Hour)
		require.Equal(t, time.Second, time.Since(begin), "nothing is under way any more")
	})
}
