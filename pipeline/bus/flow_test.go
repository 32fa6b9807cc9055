package bus_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// again is an after that asks for more attempts until there were n.
func again(name string, order, n int, delay time.Duration) pipeline.Stage {
	return pipeline.Stage{Name: name, Kind: messages.Model, Order: order, Keep: true, After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Attempt() < n {
			return pipeline.Again(delay), nil
		}
		return pipeline.Continue(), nil
	}}
}

// TestTrap_LeaseB1_Generations: retry around fallback, where the inner attempt starts again at 1, runs to its end; no
// two of its stored messages share an id.
func TestTrap_LeaseB1_Generations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var runs sync.Map
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		n, _ := runs.LoadOrStore(c.ID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		return echo(ctx, c, e)
	})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, again("outer", 10, 2, 0), again("inner", 20, 2, 300*time.Millisecond))})
	var all []pipeline.Pending
	for range 50 {
		all = append(all, accept(t, n, chatRequest()))
	}
	for _, p := range all {
		c := wait(t, p)
		require.Nil(t, c.Fault)
		require.Equal(t, 4, c.Slip.Tries)
		count, _ := runs.Load(c.ID)
		require.EqualValues(t, 4, count.(*atomic.Int64).Load())
	}
	w.settled()
}

// TestTrap_LeaseB4_WaitingIsNotRunTwice: calls that wait in a stage's memory for longer than their ack wait are marked,
// not delivered again.
func TestTrap_LeaseB4_WaitingIsNotRunTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	var runs atomic.Int64
	slow := pipeline.Stage{Name: "slow", Kind: messages.Model, Order: 10, Before: func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
		runs.Add(1)
		select {
		case <-time.After(100 * time.Millisecond): // work: 40 calls take four ack waits
		case <-ctx.Done():
		}
		return pipeline.Continue(), nil
	}}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, slow), StageSlots: 1})
	var all []pipeline.Pending
	for range 40 {
		all = append(all, accept(t, n, chatRequest()))
	}
	for _, p := range all {
		require.Nil(t, wait(t, p).Fault)
	}
	require.EqualValues(t, 40, runs.Load(), "each ran once")
	w.settled()
}

// TestTrap_BusLab6_LongTarget: a target that works for longer than the ack wait runs once.
func TestTrap_BusLab6_LongTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	var runs atomic.Int64
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		runs.Add(1)
		select {
		case <-time.After(2500 * time.Millisecond):
		case <-ctx.Done():
		}
		return echo(ctx, c, e)
	})
	w.node(bus.Options{Targets: roles(target), Manager: manager(t)})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t)})
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	require.EqualValues(t, 1, runs.Load())
	w.settled()
}

// TestTrap_Lease4_MaxAckPending is the throttle: no more calls than InFlight are between entry and first checkpoint.
func TestTrap_Lease4_MaxAckPending(t *testing.T) {
	t.Parallel()
	const most = 4
	w := newWorld(t, bus.Config{InFlight: most})
	var now, peak atomic.Int64
	stage := pipeline.Stage{Name: "a", Kind: messages.Model, Order: 10, Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		if n := now.Add(1); n > peak.Load() {
			peak.Store(n)
		}
		time.Sleep(5 * time.Millisecond) // simulated: work that would overlap
		now.Add(-1)
		return pipeline.Continue(), nil
	}}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, stage)})
	var all []pipeline.Pending
	for range 40 {
		all = append(all, accept(t, n, chatRequest()))
	}
	for _, p := range all {
		require.Nil(t, wait(t, p).Fault)
	}
	require.LessOrEqual(t, peak.Load(), int64(most))
	w.settled()
}

// TestTrap_LeaseB3_FullEntryRefusesAtOnce: the entry stream is limited and refuses; what was accepted still ends.
func TestTrap_LeaseB3_FullEntryRefusesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{EntryMaxMsgs: 3, InFlight: 1})
	go_ := make(chan struct{})
	stage := pipeline.Stage{Name: "a", Kind: messages.Model, Order: 10, Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		<-go_
		return pipeline.Continue(), nil
	}}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, stage)})
	var all []pipeline.Pending
	for range 3 {
		all = append(all, accept(t, n, chatRequest()))
	}
	begin := time.Now()
	_, err := n.Accept(t.Context(), chatRequest())
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	require.Equal(t, messages.Overloaded, f.Code)
	require.True(t, f.Retryable())
	require.Less(t, time.Since(begin), 2*time.Second)
	close(go_)
	for _, p := range all {
		require.Nil(t, wait(t, p).Fault)
	}
	w.settled()
}

// TestTrap_Lease3_LateHop: a hop that is first read after its lease's time is dropped and counted, not run.
func TestTrap_Lease3_LateHop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var runs atomic.Int64
	stage := pipeline.Stage{Name: "a", Kind: messages.Model, Order: 10, Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		runs.Add(1)
		return pipeline.Continue(), nil
	}}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, stage)})
	nc := w.conn()
	hops := make(chan *nats.Msg, 4)
	_, err := nc.Subscribe("shallot.v1.hop.>", func(m *nats.Msg) { hops <- m })
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	late := <-hops
	late.Header["Shallot-Lease-Until"] = []string{time.Now().Add(-time.Second).Format(time.RFC3339Nano)}
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: late.Subject, Header: late.Header, Data: late.Data}))
	require.Eventually(t, func() bool {
		d, err := n.Diagnostics(t.Context())
		return err == nil && contains(rawjson.Encode(d), `"lateHops":1`)
	}, 5*time.Second, 20*time.Millisecond)
	require.EqualValues(t, 1, runs.Load())
	require.Zero(t, w.messages(jet.DeadStream))
}

func contains(raw []byte, part string) bool {
	for i := 0; i+len(part) <= len(raw); i++ {
		if string(raw[i:i+len(part)]) == part {
			return true
		}
	}
	return false
}

// TestTrap_NatsD11_AbsentStage: a hop to a stage that nobody serves is not lost: the call waits on the server, goes on
// when the stage starts, is passed on where the stage may be skipped, and ends with a fault that names the stage.
func TestTrap_NatsD11_AbsentStage(t *testing.T) {
	t.Parallel()
	t.Run("waits and goes on", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, bus.Config{})
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("far", 10)), Hosts: nobody})
		events, err := w.conn().SubscribeSync("shallot.v1.delay.*")
		require.NoError(t, err)
		p := accept(t, n, chatRequest())
		_, err = events.NextMsg(5 * time.Second)
		require.NoError(t, err, "it waits as a schedule")
		require.Eventually(t, func() bool { return n.Held() == 0 }, 5*time.Second, time.Millisecond, "and holds no lease")
		w.node(bus.Options{Manager: manager(t, through("far", 10))})
		c := wait(t, p)
		require.Nil(t, c.Fault)
		require.Equal(t, []string{"far.beforeModel", "model", "far.afterModel"}, c.Slip.Path)
		w.settled()
	})
	t.Run("on-absent: skip", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, bus.Config{})
		far := through("far", 10)
		far.SkipAbsent = true
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, far, through("near", 20)), Hosts: only("near")})
		c := wait(t, accept(t, n, chatRequest()))
		require.Nil(t, c.Fault)
		require.Equal(t, []string{"far.beforeModel(skipped)", "near.beforeModel", "model", "near.afterModel"}, c.Slip.Path)
		w.settled()
	})
	t.Run("stage_absent at the deadline", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, bus.Config{})
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("near", 10), through("far", 20)), Hosts: only("near")})
		r := chatRequest()
		r.Deadline = time.Now().Add(1200 * time.Millisecond)
		c := wait(t, accept(t, n, r))
		require.NotNil(t, c.Fault)
		require.Equal(t, messages.StageAbsent, c.Fault.Code, c.Fault.Message)
		require.Contains(t, c.Fault.Message, "far")
		w.settled()
	})
}

// TestTrap_BusLab4_Schedules: Again with a delay is held by the server, in its steps, and holds neither lease nor slot.
func TestTrap_BusLab4_Schedules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{InFlight: 1})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, again("retry", 10, 2, 500*time.Millisecond))})
	var all []pipeline.Pending
	begin := time.Now()
	for range 10 {
		all = append(all, accept(t, n, chatRequest()))
	}
	for _, p := range all {
		c := wait(t, p)
		require.Nil(t, c.Fault)
		require.Equal(t, 2, c.Slip.Tries)
		require.GreaterOrEqual(t, time.Since(begin), 500*time.Millisecond)
	}
	require.Less(t, time.Since(begin), 4*time.Second, fmt.Sprintf("the delays of %d calls do not add up, although one lease is allowed at once", len(all)))
	w.settled()
}

// RT-9: a cancel during the wait of an Again ends it at once, whoever says it: the caller who leaves, or anybody's message.
// The target does not run again, and nothing waits on the server any more.
func TestCancelCutsAWaitShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var runs atomic.Int64
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		runs.Add(1)
		c.SetReply([]byte(`{}`))
		return nil
	})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, again("patient", 10, 5, time.Hour))})
	nc := w.conn()
	parked := func(id string) bool {
		s, err := w.js.Stream(t.Context(), jet.HopsStream)
		require.NoError(t, err)
		_, err = s.GetLastMsgForSubject(t.Context(), messages.Subjects{}.Delay(id))
		return err == nil
	}
	for name, cancel := range map[string]func(p pipeline.Pending){
		"he leaves": func(p pipeline.Pending) { p.Leave() },
		"a message": func(p pipeline.Pending) { require.NoError(t, nc.Publish(messages.Subjects{}.Cancel(p.ID()), nil)) },
	} {
		before := runs.Load()
		p := accept(t, n, chatRequest())
		require.Eventually(t, func() bool { return parked(p.ID()) }, 10*time.Second, 5*time.Millisecond, name)
		begin := time.Now()
		cancel(p)
		c := wait(t, p)
		t.Logf("%s: answered after %v", name, time.Since(begin))
		require.NotNil(t, c.Fault, name)
		require.Equal(t, messages.Cancelled, c.Fault.Code, name)
		require.EqualValues(t, before+1, runs.Load(), name)
		require.False(t, parked(p.ID()), name)
	}
	w.settled()
}
