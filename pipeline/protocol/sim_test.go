package protocol

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// simulate runs one seed and returns what was violated, "" for nothing.
func simulate(seed uint64, bad defect, trace *strings.Builder) string {
	w := newWorld(seed, bad, trace)
	w.build()
	w.run()
	if w.judge.failed == "" {
		w.judge.end()
	}
	return w.judge.failed
}

// seeds is how many seeds run: SHALLOT_SEEDS, defaultSeeds otherwise.
func seeds(t *testing.T) uint64 {
	if s := os.Getenv("SHALLOT_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return n
	}
	return defaultSeeds
}

func TestNoSeedBreaksAPromise(t *testing.T) {
	t.Parallel()
	if s := os.Getenv("SHALLOT_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		var trace strings.Builder
		failed := simulate(seed, none, &trace)
		t.Log("\n" + trace.String())
		require.Empty(t, failed)
		return
	}
	for seed := range seeds(t) {
		if failed := simulate(seed, none, nil); failed != "" {
			var trace strings.Builder
			simulate(seed, none, &trace)
			require.Failf(t, failed, "seed %d (SHALLOT_SEED=%d runs it alone)\n%s", seed, seed, trace.String())
		}
	}
}
