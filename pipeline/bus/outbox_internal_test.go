package bus

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// While one message is being sent, a thousand streams leave theirs and go on; one goroutine sends them, and each stream
// in its order.
func TestAThousandStreamsSendFromOneGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const streams, pieces = 1000, 4
		var tasks tally
		var sending, most, left atomic.Int32
		var got [streams][]int
		b, held := newOutbox(&tasks), make(chan struct{})
		for s := range streams {
			go func() {
				for n := range pieces {
					b.room()
					b.post(100, func() {
						most.Store(max(most.Load(), sending.Add(1)))
						<-held
						got[s] = append(got[s], n)
						sending.Add(-1)
					})
				}
				left.Add(1)
			}()
		}
		synctest.Wait()
		require.EqualValues(t, streams, left.Load(), "nobody waits for the connection")
		close(held)
		tasks.Wait()
		require.EqualValues(t, 1, most.Load())
		for s := range streams {
			require.Equal(t, []int{0, 1, 2, 3}, got[s])
		}
		require.Zero(t, b.bytes)
	})
}

// What waits is bounded: targets that go on beyond it wait, and outcomes do not.
func TestAFullOutboxHoldsUpTargetsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tasks tally
		var sent, through atomic.Int32
		b, held := newOutbox(&tasks), make(chan struct{})
		post := func() { b.post(outboxBytes/2+1, func() { <-held; sent.Add(1) }) }
		post()
		require.False(t, b.full())
		post()
		require.True(t, b.full())
		var targets sync.WaitGroup
		for range 10 {
			targets.Go(func() { b.room(); through.Add(1) })
		}
		post() // an outcome
		synctest.Wait()
		require.Zero(t, through.Load())
		close(held)
		targets.Wait()
		tasks.Wait()
		require.EqualValues(t, 3, sent.Load())
		require.False(t, b.full())
	})
}
