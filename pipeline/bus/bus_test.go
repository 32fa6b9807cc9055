package bus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

func TestOneCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10), through("b", 20))})
	c, err := n.Call(t.Context(), messages.NewCall(messages.Model, "default", []byte(chatBody)))
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"echo":`+chatBody+`}`, string(c.Reply()))
	require.Equal(t, []string{"a.beforeModel", "b.beforeModel", "model", "b.afterModel", "a.afterModel"}, c.Slip.Path)
	require.Eventually(t, func() bool { return n.Held() == 0 }, 5*time.Second, 10*time.Millisecond)
	w.settled()
}

func TestRunnerOnTheEmbeddedBus(t *testing.T) {
	t.Parallel()
	for _, fused := range []bool{false, true} {
		t.Run(map[bool]string{false: "spread", true: "fused"}[fused], func(t *testing.T) {
			t.Parallel()
			pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
				w := newWorld(t, bus.Config{Fusion: fused})
				t.Cleanup(w.settled)
				return caller{w.node(bus.Options{Entry: true, Targets: roles(f.Target), Manager: manager(t, f.Stages...)})}
			})
		})
	}
}

func TestRunnerWithEachPartInANodeOfItsOwn(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		w := newWorld(t, bus.Config{})
		t.Cleanup(w.settled)
		for _, s := range f.Stages {
			w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: only(s.Name)})
		}
		w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Targets: roles(f.Target)})
		return caller{w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Entry: true})}
	})
}

func TestStoreOnKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := 0
	pipelinetest.Store(t, func(t *testing.T) pipeline.Store {
		n++
		name := "suite_" + string(rune('a'+n%26)) + string(rune('a'+n/26))
		_, err := w.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name, LimitMarkerTTL: time.Minute})
		require.NoError(t, err)
		b, err := jet.OpenBucket(t.Context(), w.js, name)
		require.NoError(t, err)
		return b
	})
}

func TestHoldIsParkedAndGoesOnWithItsAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	ask := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		var answer string
		if !c.Noted(messages.NoteAnswer, &answer) {
			return pipeline.Hold([]byte(`"may I?"`)), nil
		}
		if answer != "yes" {
			return pipeline.Stop(), nil
		}
		return pipeline.Continue(), nil
	}
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`{"done":true}`))
		return nil
	})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t,
		pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 10, Before: ask},
	)})
	p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`)})
	require.NoError(t, err)
	_, err = p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld, "HI-12, contracts 9: a synchronous face does not wait")
	_, err = n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.Eventually(t, func() bool { return n.Held() == 0 }, 5*time.Second, 10*time.Millisecond, "a parked call holds no lease")
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	c, err := n.Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"done":true}`, string(c.Reply()))
	require.Error(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
}

// A chunk above the server's max_payload (1 MiB by default) travels in pieces, or its text comes with the end.
func TestChunkThatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	big := strings.Repeat("onion ", 350_000)
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		for _, text := range []string{"first ", big, "last"} {
			delta := rawjson.SetFieldString([]byte("{}"), "content", text)
			if err := emit(chat.Chunk([]byte(`{"id":"x"}`), 0, delta, nil)); err != nil {
				return err
			}
		}
		message := rawjson.SetFieldString([]byte(`{"role":"assistant"}`), "content", "first "+big+"last")
		choice := rawjson.SetField([]byte(`{"index":0,"finish_reason":"stop"}`), "message", message)
		c.SetReply(rawjson.SetField([]byte(`{"id":"x"}`), "choices", rawjson.Array([][]byte{choice})))
		return nil
	})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t)})
	body := []byte(`{"model":"m","stream":true,"messages":[]}`)
	p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Stream: true, Body: body})
	require.NoError(t, err)
	follow := stream.NewFollower(body)
	var chunks [][]byte
	c, err := p.Wait(t.Context(), func(d pipeline.Delta) { chunks = append(chunks, follow.Delta(d)...) })
	require.NoError(t, err)
	rest, fault := follow.End(c)
	require.Nil(t, fault)
	var text strings.Builder
	for _, chunk := range append(chunks, rest...) {
		text.WriteString(gjson.GetBytes(chunk, "choices.0.delta.content").Str)
	}
	require.True(t, text.String() == "first "+big+"last", "%d bytes", text.Len())
}
