package cli

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A small process collects rarely; one that holds much has no multiple of it in garbage.
func TestGarbageIsBoundedWhereMuchLives(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 400, 10 << 20: 400, 38 << 20: 400, 64 << 20: 200, 96 << 20: 100,
		128 << 20: 50, 192 << 20: 50, 1 << 40: 50} {
		require.Equal(t, want, garbageOf(live), live)
	}
}

func TestEachCollectionIsNoticed(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{}, 1)
	afterEachCollection(func() {
		select {
		case seen <- struct{}{}:
		default:
		}
	})
	for range 3 {
		runtime.GC()
		<-seen
	}
}
