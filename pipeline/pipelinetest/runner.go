package pipelinetest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Streamer is a Caller that can pass on the chunks of a streamed call. Cases about streams run only on Streamers.
type Streamer interface {
	pipeline.Caller
	// CallStream is Call with chunks: onChunk is called in order for each chunk, and never after CallStream has
	// returned.
	CallStream(ctx context.Context, c *messages.Call, onChunk func(chunk []byte)) (*messages.Call, error)
}

// Runner is the suite of a Caller. newCaller is called once for each fixture and returns a caller whose calls pass the
// fixture's stages and target; it must stop what it starts in t.Cleanup. A call from the suite has no slip: the caller
// gives it one of all the fixture's stages. Fixtures run in parallel, each case's calls at once.
func Runner(t *testing.T, newCaller func(t *testing.T, f Fixture) pipeline.Caller) {
	t.Helper()
	all := Fixtures()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller := newCaller(t, f)
			for _, c := range f.Cases {
				t.Run(c.Name, func(t *testing.T) { runCase(t, caller, c) })
			}
		})
	}
}

func runCase(t *testing.T, caller pipeline.Caller, c Case) {
	streamer, ok := caller.(Streamer)
	if c.Stream && !ok {
		t.Skip("this caller hands out no chunks")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := max(c.Calls, 1)
	out, errs := make([]Outcome, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			begin := time.Now() // before the call has its deadline
			call := c.Call(i)
			if c.Stream {
				out[i].Call, errs[i] = streamer.CallStream(ctx, call, func(chunk []byte) {
					out[i].Chunks = append(out[i].Chunks, slices.Clone(chunk))
				})
			} else {
				out[i].Call, errs[i] = caller.Call(ctx, call)
			}
			out[i].Took = time.Since(begin)
		})
	}
	wg.Wait()
	for i := range n {
		require.NoError(t, errs[i], "call %d", i)
		require.NotNil(t, out[i].Call, "call %d", i)
		c.Check(t, i, out[i])
	}
}
