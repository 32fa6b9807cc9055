//go:build unix

package process

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// TestSwitchesUnderLoad is HT-6, ST-5 and ST-6 over processes: 1,000 calls while a stage is switched 100 times by all
// three ways and workers stop, freeze and die, so that others are asked for what was in their hands. Every call saw the
// stage in both phases or in neither, and the statistics are the sum of the calls' own slips.
func TestSwitchesUnderLoad(t *testing.T) {
	t.Parallel()
	const calls, switches, callers = 1000, 100, 24
	c := newCluster(t, "SHALLOT_BUS__ACK_WAIT=1s")
	_, base := c.gateway()
	roles := []string{"--stages", "all", "--serve", "model"}
	workers := []*process{c.worker(roles...), c.worker(roles...), c.worker(roles...)}
	for _, w := range workers {
		w.ready(t)
	}
	js, err := jetstream.New(c.nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var taken, ended atomic.Int64
	reached := make(chan struct{}, calls)
	var mu sync.Mutex
	var paths [][]string
	var bad []string
	one := func(i int64) {
		var a answer
		var err error
		if i%2 == 0 {
			a, err = httpDo(ctx, "POST", base+"/v1/chat/completions", echo)
		} else {
			a, err = c.ask(ctx, "shallot.v1.model.request", echo)
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			bad = append(bad, err.Error())
		case a.status != 200:
			bad = append(bad, fmt.Sprintf("%d %s", a.status, a.body))
		default:
			paths = append(paths, a.path())
		}
	}
	var load, disturb sync.WaitGroup
	for range callers {
		load.Go(func() {
			for i := taken.Add(1); i <= calls; i = taken.Add(1) {
				one(i)
				ended.Add(1)
				reached <- struct{}{}
			}
		})
	}
	// after waits until as many calls have ended; the disturbances follow the load, not the clock.
	marks := map[int64]chan struct{}{}
	for i := int64(1); i <= switches; i++ {
		marks[i*(calls-100)/switches] = make(chan struct{})
	}
	for _, at := range []int64{150, 400, 650} {
		if marks[at] == nil {
			marks[at] = make(chan struct{})
		}
	}
	disturb.Go(func() {
		for n := int64(1); n <= calls; n++ {
			<-reached
			if m := marks[n]; m != nil {
				close(m)
			}
		}
	})
	disturb.Go(func() {
		for i := int64(1); i <= switches; i++ {
			<-marks[i*(calls-100)/switches]
			on := i%2 == 0
			verb := map[bool]string{true: "enable", false: "disable"}[on]
			var err error
			var a answer
			switch i % 3 {
			case 0:
				_, err = kv.Put(ctx, "stage.model.logging.enabled", fmt.Appendf(nil, "%t", on))
			case 1:
				a, err = c.ask(ctx, "shallot.v1.control."+verb, "logging")
			case 2:
				a, err = httpDo(ctx, "POST", base+"/api/debug/interceptor/logging/"+verb, "")
			}
			if err != nil || a.status > 200 {
				mu.Lock()
				bad = append(bad, fmt.Sprintf("switch %d: %v %d %s", i, err, a.status, a.body))
				mu.Unlock()
			}
		}
	})
	disturb.Go(func() {
		// Frozen for longer than the ack wait: what it holds is delivered to others, and it wakes to calls that have
		// moved on.
		for _, at := range []int64{150, 650} {
			<-marks[at]
			workers[0].signal(syscall.SIGSTOP)
			select {
			case <-time.After(2500 * time.Millisecond):
			case <-ctx.Done():
			}
			workers[0].signal(syscall.SIGCONT)
		}
	})
	disturb.Go(func() {
		<-marks[400]
		workers[1].kill()
		c.worker(roles...)
	})
	load.Wait()
	disturb.Wait()
	require.Empty(t, bad, "every call ends in its answer, whatever dies")
	require.Len(t, paths, calls)

	sum := map[string]int64{}
	var with int
	for _, path := range paths {
		seen := map[string]int{}
		for _, hop := range path {
			seen[hop]++
		}
		require.Equal(t, 1, seen["model"], path)
		for _, stage := range []string{"audit", "logging"} {
			require.Equal(t, seen[stage+".beforeModel"], seen[stage+".afterModel"], "HT-6 both phases or neither: %v", path)
			require.LessOrEqual(t, seen[stage+".beforeModel"], 1, path)
			sum[stage] += int64(seen[stage+".beforeModel"])
		}
		sum["model-fallback"] += int64(seen["model-fallback.afterModel"])
		if seen["logging.beforeModel"] == 1 {
			with++
		}
	}
	require.NotZero(t, with, "some calls had the stage")
	require.NotEqual(t, calls, with, "and some had not")
	stats := c.req("shallot.v1.control.stats", "").body
	for stage, n := range sum {
		require.Equal(t, n, row(stats, stage, "model").Get("invocationCount").Int(), "ST-5, ST-6 stage %s", stage)
	}
	require.EqualValues(t, calls, gjson.GetBytes(stats, "chainBuildCount").Int(), "ST-3")
	diag := c.req("shallot.v1.control.diagnostics", "").body
	require.Zero(t, gjson.GetBytes(diag, "deadLetters").Int())
	t.Logf("%d of %d calls had the stage", with, calls)
}
