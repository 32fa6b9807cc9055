package tools_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// A call that waits for its next attempt costs one goroutine and no more. It counts the goroutines of the process, so
// it runs alone.
func TestPendingRetries(t *testing.T) {
	require.Less(t, pendingRetries(t, 1000), 1000+spare)
}

// spare are goroutines that a node keeps for more work, up to a bound.
const spare = 200

// BenchmarkPendingRetries is the same with 10,000 calls; goroutines is how many more there are than before.
func BenchmarkPendingRetries(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(float64(pendingRetries(b, 10_000)), "goroutines")
	}
}

// pendingRetries brings n calls to where each waits for its second attempt, and says how many goroutines there are more
// than before.
func pendingRetries(t testing.TB, n int) int {
	b := startRows(t, "tool-retry: {base-delay: 50s, max-delay: 50s}", "",
		"    - {name: t, executor: \"go:script\", effect: read, cache: \"off\"}\n")
	b.do(t, "t", `{"row":"warm"}`)
	before := goroutines()
	var wg sync.WaitGroup
	for from := range 64 {
		wg.Go(func() {
			for i := from; i < n; i += 64 {
				_, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "t", Submit: true,
					Body: fmt.Appendf(nil, `{"row":"waits","fail":%d,"text":"x","i":%d}`, n, i)})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// On a slow machine the first ones are tried again before the last have come.
	retries := func() int64 { return b.details("tool-retry")["totalRetries"].(int64) }
	require.Eventually(t, func() bool { return retries() >= int64(n) }, 3*time.Minute, 10*time.Millisecond)
	require.GreaterOrEqual(t, b.count("waits"), n, "each has run once and waits")
	more := 0
	require.Eventually(t, func() bool {
		more = goroutines() - before
		return more < n+spare
	}, time.Minute, 50*time.Millisecond)
	return more
}
