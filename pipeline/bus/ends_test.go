package bus_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

func requireFault(t *testing.T, err error, code messages.Code) {
	t.Helper()
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	require.Equal(t, code, f.Code, f.Message)
}

// TestTrap_NatsC_ClaimCheck: bodies above the limit, and several that are too much only together, travel as references;
// a blind stage does not fetch them.
func TestTrap_NatsC_ClaimCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var blind, seeing atomic.Int64
	stages := []pipeline.Stage{
		{Name: "keeper", Kind: messages.Model, Order: 10, Keep: true, After: pass},
		{Name: "editor", Kind: messages.Model, Order: 20, Keep: true, After: pass, Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetRequest(rawjson.SetFieldString(c.Request(), "edited", strings.Repeat("e", 200<<10)))
			return pipeline.Continue(), nil
		}},
		{Name: "blind", Kind: messages.Model, Order: 30, Blind: true, Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			blind.Store(int64(len(c.Refs())))
			return pipeline.Continue(), nil
		}},
		{Name: "seeing", Kind: messages.Model, Order: 40, Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			seeing.Store(int64(len(c.Refs())))
			return pipeline.Continue(), nil
		}},
	}
	for _, s := range stages {
		w.node(bus.Options{Manager: manager(t, stages...), Hosts: only(s.Name)})
	}
	w.node(bus.Options{Manager: manager(t, stages...), Hosts: nobody, Targets: roles(pipeline.TargetFunc(echo))})
	n := w.node(bus.Options{Manager: manager(t, stages...), Hosts: nobody, Entry: true})
	for name, size := range map[string]int{"together over max_payload": 240 << 10, "above the limit": 300 << 10, "far above max_payload": 5 << 20} {
		r := chatRequest()
		r.Body = rawjson.SetFieldString([]byte(chatBody), "big", strings.Repeat("b", size))
		c := wait(t, accept(t, n, r))
		require.Nil(t, c.Fault, name)
		want := rawjson.SetFieldString(r.Body, "edited", strings.Repeat("e", 200<<10))
		require.True(t, bytes.Equal([]byte(`{"echo":`+string(want)+`}`), c.Reply()), name)
		require.Zero(t, seeing.Load())
		require.Positive(t, blind.Load(), "%s: nothing was fetched for the stage that does not look", name)
	}
	w.settled()
}

// TestCancel: before its hop, while its target runs, and after its end.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	started := make(chan struct{}, 1)
	block := make(chan struct{})
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		if k, _ := rawjson.FieldString(c.Request(), "model"); k == "quick" {
			return echo(ctx, c, e)
		}
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	gate := pipeline.Stage{Name: "gate", Kind: messages.Model, Order: 10, Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Session == "gated" {
			<-block
		}
		return pipeline.Continue(), nil
	}}
	w.node(bus.Options{Targets: roles(target), Hosts: nobody, Manager: manager(t, gate)})
	n := w.node(bus.Options{Entry: true, Manager: manager(t, gate)})
	t.Run("while the target runs, from another process", func(t *testing.T) {
		p := accept(t, n, chatRequest())
		<-started
		p.Leave()
		p.Leave()
		c := wait(t, p)
		require.Equal(t, messages.Cancelled, c.Fault.Code)
	})
	t.Run("before the target", func(t *testing.T) {
		r := chatRequest()
		r.Session = "gated"
		p := accept(t, n, r)
		n.Cancel(p.ID())
		close(block)
		require.Equal(t, messages.Cancelled, wait(t, p).Fault.Code)
		require.Empty(t, started, "the target did not run")
	})
	t.Run("after the end", func(t *testing.T) {
		r := chatRequest()
		r.Body = []byte(`{"model":"quick"}`)
		p := accept(t, n, r)
		c := wait(t, p)
		n.Cancel(p.ID())
		p.Leave()
		require.Nil(t, c.Fault)
		require.Nil(t, wait(t, p).Fault, "an end stays as it is")
	})
	w.settled()
}

// TestIdempotency: one key is one call, on whichever process it comes back.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var runs atomic.Int64
	block := make(chan struct{})
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		n := runs.Add(1)
		switch c.IdempotencyKey {
		case "slow":
			<-block
		case "limited":
			if n := c.Session; n == "first" {
				return messages.NewFault(messages.ProviderLimited, "later")
			}
		case "wrong":
			return messages.NewFault(messages.ProviderRejected, "never")
		}
		c.SetReply(rawjson.SetField([]byte(`{}`), "run", rawjson.Encode(n)))
		return nil
	})
	o := bus.Options{Entry: true, Targets: roles(target)}
	o.Manager = manager(t)
	a := w.node(o)
	o.Manager = manager(t)
	b := w.node(o)
	with := func(key string) pipeline.Request { r := chatRequest(); r.IdempotencyKey = key; return r }

	t.Run("the same answer from another process", func(t *testing.T) {
		first := wait(t, accept(t, a, with("k")))
		for _, n := range []*bus.Node{a, b} {
			c := wait(t, accept(t, n, with("k")))
			require.Equal(t, first.ID, c.ID)
			require.Equal(t, first.Reply(), c.Reply())
		}
		require.EqualValues(t, 1, runs.Load())
	})
	t.Run("attaches to a call under way, also when its connection was lost", func(t *testing.T) {
		p := accept(t, a, with("slow"))
		p.Leave() // the connection is lost: with a key, the work goes on
		q, r := accept(t, b, with("slow")), accept(t, a, with("slow"))
		require.Equal(t, []string{p.ID(), p.ID()}, []string{q.ID(), r.ID()})
		close(block)
		x, y := wait(t, q), wait(t, r)
		require.Nil(t, x.Fault)
		require.Equal(t, x.Reply(), y.Reply())
		require.EqualValues(t, 2, runs.Load())
	})
	t.Run("another body is refused", func(t *testing.T) {
		r := with("k")
		r.Body = []byte(`{"model":"other"}`)
		_, err := b.Accept(t.Context(), r)
		requireFault(t, err, messages.IdempotencyMismatch)
	})
	t.Run("another tenant has keys of its own", func(t *testing.T) {
		r := with("k")
		r.Tenant = "other"
		was := runs.Load()
		require.Nil(t, wait(t, accept(t, b, r)).Fault)
		require.Equal(t, was+1, runs.Load())
	})
	t.Run("a retryable fault frees the key, another does not", func(t *testing.T) {
		r := with("limited")
		r.Session = "first"
		require.Equal(t, messages.ProviderLimited, wait(t, accept(t, a, r)).Fault.Code)
		r.Session = ""
		c := wait(t, accept(t, b, r))
		require.Nil(t, c.Fault)
		first := wait(t, accept(t, a, with("wrong")))
		second := wait(t, accept(t, b, with("wrong")))
		require.Equal(t, messages.ProviderRejected, second.Fault.Code)
		require.Equal(t, first.ID, second.ID)
	})
	w.settled()
}

// TestIdempotencyOfADeadClaimant: the claimant died between the record and the store; who comes with the key, and who
// already waits for it, gets an answer.
func TestIdempotencyOfADeadClaimant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t)})
	r := chatRequest()
	r.IdempotencyKey = "k"
	first := wait(t, accept(t, n, r))
	b, err := jet.OpenBucket(t.Context(), w.js, jet.IdempotencyBucket)
	require.NoError(t, err)
	keys, err := b.Keys(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, keys, 1)
	e, err := b.Get(t.Context(), keys[0])
	require.NoError(t, err)
	record := rawjson.SetField(e.Value, "stored", []byte("false"))
	record = rawjson.SetField(record, "since", rawjson.Encode(time.Now()))
	id := messages.NewID()
	record = rawjson.SetFieldString(record, "call", id)
	_, err = b.Put(t.Context(), keys[0], record, 0, pipeline.Always())
	require.NoError(t, err)
	c := wait(t, accept(t, n, r))
	require.Nil(t, c.Fault)
	require.Equal(t, id, c.ID)
	require.NotEqual(t, first.ID, c.ID)
	w.settled()
}

// TestSubmit: accepted, running, done; another tenant is told nothing.
func TestSubmit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	block := make(chan struct{})
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		<-block
		return echo(ctx, c, e)
	})
	a := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t)})
	b := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t)})
	r := chatRequest()
	r.Submit, r.Tenant = true, "acme"
	p := accept(t, a, r)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c, err := b.Result(short, "acme", p.ID())
	require.NoError(t, err)
	require.Nil(t, c, "it runs")
	_, err = b.Result(t.Context(), "other", p.ID())
	requireFault(t, err, messages.NotFound)
	_, err = b.Result(t.Context(), "acme", messages.NewID())
	requireFault(t, err, messages.NotFound)
	close(block)
	c, err = b.Result(t.Context(), "acme", p.ID())
	require.NoError(t, err)
	require.Equal(t, `{"echo":`+chatBody+`}`, string(c.Reply()))
	_, err = a.Result(t.Context(), "other", p.ID())
	requireFault(t, err, messages.NotFound)
	w.settled()
}
