package bus

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// synctest fails if a goroutine is left that waits for work.
func TestATallyRunsEverythingAndLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tl tally
		var ran atomic.Int64
		for range 3 {
			for range 2 * keptIdle {
				tl.Go(func() { ran.Add(1) })
			}
			synctest.Wait()
			require.LessOrEqual(t, tl.idle, keptIdle)
			require.Positive(t, tl.idle, "they wait for more")
		}
		hold := make(chan struct{})
		tl.Go(func() { <-hold; tl.Go(func() { ran.Add(1) }) })
		go close(hold)
		tl.Wait()
		require.EqualValues(t, 6*keptIdle+1, ran.Load())
		tl.Go(func() { ran.Add(1) })
		synctest.Wait()
		require.Zero(t, tl.idle, "nobody waits for work after Wait")
	})
}
