//go:build long

package bus_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// live is the memory in use after a collection.
func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// Ten thousand calls are in flight in one process at once: bound ones and stored ones (BU-15).
func TestLongTenThousandCallsAreInFlight(t *testing.T) {
	const calls = 10_000
	for name, keep := range map[string]bool{"bound": false, "stored": true} {
		t.Run(name, func(t *testing.T) {
			w, target := newWorld(t, bus.Config{Running: calls}), newSlow()
			n := w.node(bus.Options{Entry: true, Targets: slots(calls, target), Manager: manager(t, through("s", 10))})
			require.Nil(t, wait(t, acceptGoing(t, n, target)).Fault)
			before := live()
			begin := time.Now()
			all := make([]pipeline.Pending, calls)
			var accepts sync.WaitGroup
			for k := range 64 {
				accepts.Go(func() {
					for i := k; i < calls; i += 64 {
						r := chatRequest()
						r.Deadline, r.Keep = time.Now().Add(5*time.Minute), keep
						p, err := n.Accept(t.Context(), r)
						if err != nil {
							t.Error(err)
							return
						}
						all[i] = p
					}
				})
			}
			accepts.Wait()
			for range calls {
				<-target.began
			}
			each := (live() - before) / calls
			t.Logf("%d calls are in flight after %s; %d bytes each", calls, time.Since(begin).Round(time.Millisecond), each)
			require.Less(t, each, int64(40<<10))
			begin = time.Now()
			close(target.goOn)
			for _, p := range all {
				require.Nil(t, wait(t, p).Fault)
			}
			t.Logf("all have ended after %s", time.Since(begin).Round(time.Millisecond))
		})
	}
}

// acceptGoing accepts a call whose work is let go at once.
func acceptGoing(t *testing.T, n *bus.Node, target *slow) pipeline.Pending {
	t.Helper()
	p := accept(t, n, chatRequest())
	<-target.began
	target.goOn <- struct{}{}
	return p
}

// Ten thousand calls for a provider that is dead hold up no call of another: p99 stays within half as much again
// (BU-3).
func TestLongADeadProviderDoesNotHoldUpOthers(t *testing.T) {
	for name, hangs := range map[string]bool{"nobody serves it": false, "its workers hang": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, bus.Config{MaxQueueWait: time.Hour, ModelClasses: []string{"dead", "default"}})
			o := bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10)),
				Classify: func(c *messages.Call) (string, error) {
					if c.Tenant == "dead" {
						return "dead", nil
					}
					return "default", nil
				}}
			if hangs {
				o.Targets = append(o.Targets, bus.TargetRole{Kind: messages.Model, Class: "dead",
					Target: pipeline.TargetFunc(until)})
			}
			n, beside := w.node(o), newWorld(t, bus.Config{ModelClasses: []string{"dead", "default"}}).node(o)
			var stuck []pipeline.Pending
			for range 10_000 {
				r := ofTenant("dead")
				r.Deadline = time.Now().Add(5 * time.Minute)
				stuck = append(stuck, accept(t, n, r))
			}
			load(t, n, func(c bus.Capacity) bool { return c.Class == "dead" && c.Waiting+c.Away == len(stuck) })
			var without, with []time.Duration
			for range 5 { // in turn, because other work on the machine comes and goes
				without, with = append(without, percentile(t, beside, 2000)), append(with, percentile(t, n, 2000))
			}
			before, during := slices.Min(without), slices.Min(with)
			t.Logf("p99 %s without, %s with 10,000 calls for a dead provider", without, with)
			for _, p := range stuck {
				p.Leave()
			}
			require.Less(t, during, before*3/2+time.Millisecond)
		})
	}
}

// A thousand readers that do not read cost a bounded amount of memory, and get the whole reply at the end.
func TestLongAThousandSlowReadersStayWithinTheirMemory(t *testing.T) {
	const readers, pieces = 1000, 60
	w := newWorld(t, bus.Config{})
	var piece [4 << 10]byte
	for i := range piece {
		piece[i] = 'x'
	}
	chunk := fmt.Appendf(nil,
		`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%s"}}]}`, piece[:])
	var emitted atomic.Int64
	n := w.node(bus.Options{Entry: true, Manager: manager(t), Targets: roles(pipeline.TargetFunc(
		func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
			pace := time.NewTicker(100 * time.Millisecond) // simulated: a model's; faster ones fill the client's buffer too
			defer pace.Stop()
			for range pieces {
				<-pace.C
				if err := emit(chunk); err != nil {
					return err
				}
				emitted.Add(1)
			}
			c.SetReply([]byte(`{}`))
			return nil
		}))})
	before := live()
	stop, peak := make(chan struct{}), make(chan int64)
	go func() { // the greatest amount in use at any time
		var most int64
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(50 * time.Millisecond): // simulated: a sampler's period
				most = max(most, live()-before)
			}
		}
	}()
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			r := chatRequest()
			r.Stream, r.Deadline = true, time.Now().Add(2*time.Minute)
			p, err := n.Accept(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			if c, err := p.Wait(t.Context(), func(pipeline.Delta) { <-stop }); err != nil || c.Fault != nil {
				t.Error(err, c)
			}
		})
	}
	require.Eventually(t, func() bool { return emitted.Load() == readers*pieces }, 2*time.Minute, 50*time.Millisecond)
	load(t, n, func(c bus.Capacity) bool { return c.Busy == 0 })
	close(stop)
	most := <-peak
	t.Logf("%d slow readers of %d KiB each took %d MiB", readers, pieces*len(chunk)>>10, most>>20)
	require.Less(t, most, int64(300<<20))
	all.Wait()
}

// percentile runs so many calls from a few callers and returns the time that a hundredth of them exceeds.
func percentile(t testing.TB, n *bus.Node, calls int) time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range calls / 8 {
				begin := time.Now()
				p, err := n.Accept(t.Context(), chatRequest())
				if err != nil {
					t.Error(err)
					return
				}
				if c, err := p.Wait(t.Context(), nil); err != nil || c.Fault != nil {
					t.Error(err, fmt.Sprint(c))
				}
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	slices.Sort(took)
	return took[len(took)*99/100]
}
