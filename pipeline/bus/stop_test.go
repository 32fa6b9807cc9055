package bus_test

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// newBareWorld is a server without streams.
func newBareWorld(t *testing.T) jetstream.JetStream {
	dir, err := os.MkdirTemp(scratch, "bare-")
	require.NoError(t, err)
	srv, err := embed.Start(embed.Options{Dir: dir, Sync: time.Minute})
	require.NoError(t, err)
	nc, err := jet.Connect(jet.ConnOptions{InProcess: srv})
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); afterTests.Go(srv.Stop) })
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// TestStopHandsBack: what runs longer than the drain time and what waits is stored again, at its step and as a first
// delivery; another process ends it.
func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{Drain: 300 * time.Millisecond, AckWait: 20 * time.Second})
	var stubborn atomic.Bool
	stubborn.Store(true)
	began := make(chan struct{}, 100)
	slow := pipeline.Stage{Name: "slow", Kind: messages.Model, Order: 10, Before: func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
		if stubborn.Load() {
			began <- struct{}{}
			<-ctx.Done()
			return pipeline.Verdict{}, context.Cause(ctx)
		}
		return pipeline.Continue(), nil
	}}
	gate := w.node(bus.Options{Entry: true, Manager: manager(t, slow), Hosts: nobody, Targets: roles(pipeline.TargetFunc(echo))})
	first := w.start(bus.Options{Manager: manager(t, slow), StageSlots: 2})
	var all []pipeline.Pending
	for range 10 {
		all = append(all, accept(t, gate, chatRequest()))
	}
	<-began
	<-began
	require.Eventually(t, func() bool { return first.Held() == 10 }, 5*time.Second, 5*time.Millisecond)
	stubborn.Store(false)
	begin := time.Now()
	require.NoError(t, stop(first))
	require.Less(t, time.Since(begin), 10*time.Second)
	require.Zero(t, first.Held())
	w.node(bus.Options{Manager: manager(t, slow)})
	for _, p := range all {
		c := wait(t, p)
		require.Nil(t, c.Fault)
		require.Equal(t, []string{"slow.beforeModel", "model"}, c.Slip.Path)
	}
	require.Less(t, time.Since(begin), 15*time.Second, "no lease had to run out")
	w.settled()
}

// TestStoppedNodeIsDeaf: a node that has stopped answers nothing, although its connection lives on.
func TestStoppedNodeIsDeaf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.start(bus.Options{Entry: true, Manager: manager(t)})
	nc := w.conn()
	ask(t, nc, "$SRV.PING.shallot", "", nil)
	require.NoError(t, stop(n))
	for _, subject := range []string{"$SRV.PING.shallot", "shallot.v1.control.report", "shallot.v1.model.request"} {
		_, err := nc.Request(subject, []byte(chatBody), 2*time.Second)
		require.ErrorIs(t, err, nats.ErrNoResponders, subject)
	}
	_, err := n.Accept(t.Context(), chatRequest())
	requireFault(t, err, messages.Stopping)
}

// TestTrap_Lease7_AcceptingProcessDies: the end of a call whose accepting process is gone is recorded, and a plain
// caller gets it as a courtesy.
func TestTrap_Lease7_AcceptingProcessDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	block, began := make(chan struct{}), make(chan struct{}, 1)
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		began <- struct{}{}
		<-block
		return echo(ctx, c, e)
	})
	dying := w.conn()
	w.start(bus.Options{Entry: true, Manager: manager(t), Conn: dying})
	nc := w.conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest("shallot.v1.model.request", sub.Subject, []byte(chatBody)))
	require.NoError(t, nc.Flush())
	require.Eventually(t, func() bool { return w.messages(jet.HopsStream)+w.messages(jet.CallsStream) > 0 }, 5*time.Second, time.Millisecond)
	w.node(bus.Options{Entry: true, Manager: manager(t), Targets: roles(target)})
	<-began
	dying.Close() // as a kill: nothing is handed over
	close(block)
	m, err := sub.NextMsg(15 * time.Second)
	require.NoError(t, err)
	require.Equal(t, `{"echo":`+chatBody+`}`, string(m.Data))
	_, err = sub.NextMsg(300 * time.Millisecond)
	require.ErrorIs(t, err, nats.ErrTimeout, "one answer")
	w.settled()
}
