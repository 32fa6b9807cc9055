package bus_test

import (
	"context"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// TestTrap_Lease5_Poison: a call whose holders die each time becomes a dead letter and its caller gets a fault; a call
// that waits beside it ends well. A dying holder is a core subscriber that takes hops and says nothing, as a process
// does that is gone.
func TestTrap_Lease5_Poison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10), through("killer", 20)), Hosts: only("a")})
	nc := w.conn()
	_, err := nc.QueueSubscribe("shallot.v1.hop.model.before.killer", "killer", func(*nats.Msg) {})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	p := accept(t, n, chatRequest())
	d := w.dead(1)[0]
	require.Contains(t, d.Header.Get("Shallot-Dead-Reason"), "deliveries used up")
	require.Equal(t, p.ID(), d.Header.Get("Shallot-Call"))
	c := wait(t, p)
	require.NotNil(t, c.Fault)
	require.Equal(t, messages.Undeliverable, c.Fault.Code)
	w.settled()
}

// TestTrap_NatsD7_TwoValues: a call with a foreign header of two values is neither lost nor does it kill.
func TestTrap_NatsD7_TwoValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10))})
	nc := w.conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	c := messages.NewCall(messages.Model, "default", []byte(chatBody))
	c.Deadline = time.Now().Add(10 * time.Second)
	c.Slip.Stops = []messages.Stop{through("a", 10).Stop()}
	c.Return.Inbox = sub.Subject
	wire, err := c.Marshal()
	require.NoError(t, err)
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: "shallot.v1.call.entry.model", Data: wire, Header: nats.Header{"Foreign": {"1", "2"}, "Shallot-Call": {c.ID, "x"}}}))
	m, err := sub.NextMsg(5 * time.Second)
	for err == nil && m.Header.Get("Shallot-Progress") != "" {
		m, err = sub.NextMsg(5 * time.Second)
	}
	require.NoError(t, err)
	end, err := messages.Unmarshal(m.Data)
	require.NoError(t, err)
	require.Nil(t, end.Fault)
	require.Equal(t, []string{"a.beforeModel", "model", "a.afterModel"}, end.Slip.Path)
	require.Zero(t, w.messages(jet.DeadStream))
}

// TestHandlersRunUnderTheRouter: watermill's Router calls the stages.
func TestHandlersRunUnderTheRouter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	stacks := make(chan string, 2)
	look := pipeline.Stage{Name: "look", Kind: messages.Model, Order: 10, Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		stacks <- string(debug.Stack())
		return pipeline.Continue(), nil
	}}
	n := w.node(bus.Options{Entry: true, Manager: manager(t, look), Targets: roles(pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		stacks <- string(debug.Stack())
		return echo(ctx, c, e)
	}))})
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	for range 2 {
		require.True(t, strings.Contains(<-stacks, "watermill/message.(*handler).handleMessage"))
	}
}
