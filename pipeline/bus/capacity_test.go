package bus_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// slow is a target whose work runs until the test lets it go.
type slow struct {
	began chan string // tenant or session of the call that has begun
	goOn  chan struct{}
}

func newSlow() *slow { return &slow{began: make(chan string, 20_000), goOn: make(chan struct{})} }

func (s *slow) Do(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
	s.began <- c.Tenant
	select {
	case <-s.goOn:
		c.SetReply([]byte(`{}`))
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// slots serves models with so many slots.
func slots(n int, target pipeline.Target) []bus.TargetRole {
	return []bus.TargetRole{{Kind: messages.Model, Class: "default", Slots: n, Target: target, Prompt: true}}
}

func ofTenant(name string) pipeline.Request {
	r := chatRequest()
	r.Tenant = name
	return r
}

// load waits until the class of models is as full as that.
func load(t testing.TB, n *bus.Node, full func(c bus.Capacity) bool) {
	t.Helper()
	var all []bus.Capacity
	ok := func() bool {
		all = n.Capacity()
		return slices.ContainsFunc(all, func(c bus.Capacity) bool { return c.Kind == messages.Model && full(c) })
	}
	require.Eventually(t, ok, 30*time.Second, time.Millisecond, "%+v", &all)
}

// Who would wait too long is told which line is full, how long it is, and when to come again (BU-9).
func TestAFullClassSaysWhatIsFullAndWhenToComeAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.QueueCapacity, cfg.MaxQueueWait = 1, 700*time.Millisecond
		w, target := newWorld(t, cfg), newSlow()
		n := w.node(bus.Options{Entry: true, Targets: slots(1, target), Manager: manager(t)})
		var all []pipeline.Pending
		for range 2 { // one runs, one is queued at the worker
			all = append(all, accept(t, n, chatRequest()))
		}
		load(t, n, func(c bus.Capacity) bool { return c.Busy == 1 && c.Queued == 1 })
		for range 2 {
			all = append(all, accept(t, n, chatRequest()))
		}
		var codes []messages.Code
		for _, p := range all[2:] {
			f := wait(t, p).Fault
			require.NotNil(t, f)
			require.Regexp(t, `the workers of default are full: \d+ calls are before this one in their line, `+
				`which takes about .*`+
				`at most 700ms \(bus.max-queue-wait\).*the model was not executed`, f.Message)
			require.GreaterOrEqual(t, f.RetryAfter, time.Second)
			require.True(t, f.Unsent)
			codes = append(codes, f.Code)
		}
		require.Equal(t, []messages.Code{messages.Overloaded, messages.Overloaded}, codes)
		close(target.goOn)
		require.Nil(t, wait(t, all[0]).Fault)
		require.Nil(t, wait(t, all[1]).Fault)
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault, "there is room again")
	})
}

// A member whose slots are full says so at once, and the call goes to one that has room, wherever the owner is.
func TestWorkGoesPastAFullMember(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.QueueCapacity = 1
		w, full, free := newWorld(t, cfg), newSlow(), newSlow()
		other := w.node(bus.Options{Targets: slots(100, free), Manager: manager(t)})
		n := w.node(bus.Options{Entry: true, Targets: slots(1, full), Manager: manager(t)})
		require.NotEqual(t, other.Name(), n.Name())
		var all []pipeline.Pending
		for range 40 {
			all = append(all, accept(t, n, chatRequest()))
		}
		for range 38 { // one runs at the full one, and one is queued there
			select {
			case <-free.began:
			case <-time.After(time.Minute):
				t.Fatal("work waits although a member has room")
			}
		}
		close(full.goOn)
		close(free.goOn)
		for _, p := range all {
			require.Nil(t, wait(t, p).Fault)
		}
	})
}

// One tenant's backlog is not another one's: their calls take turns.
func TestTenantsTakeTurnsAtAFullClass(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.QueueCapacity = 1
		w, target := newWorld(t, cfg), newSlow()
		n := w.node(bus.Options{Entry: true, Targets: slots(1, target), Manager: manager(t)})
		var all []pipeline.Pending
		for range 100 {
			all = append(all, accept(t, n, ofTenant("many")))
		}
		<-target.began
		load(t, n, func(c bus.Capacity) bool { return c.Waiting == 98 })
		for range 3 {
			all = append(all, accept(t, n, ofTenant("few")))
		}
		load(t, n, func(c bus.Capacity) bool { return c.Waiting == 101 && c.Tenants == 2 })
		var order []string
		for range len(all) - 1 {
			target.goOn <- struct{}{}
			order = append(order, <-target.began)
		}
		target.goOn <- struct{}{}
		for _, p := range all {
			require.Nil(t, wait(t, p).Fault)
		}
		last := 0
		for i, tenant := range order {
			if tenant == "few" {
				last = i
			}
		}
		require.Less(t, last, 12, "of %v", order)
	})
}
