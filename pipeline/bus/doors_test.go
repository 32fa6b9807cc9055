package bus_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

func TestStoresOnKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var n atomic.Int32
	pipelinetest.Store(t, func(t *testing.T) pipeline.Store {
		name := fmt.Sprint("suite_", n.Add(1))
		_, err := w.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name, LimitMarkerTTL: time.Minute})
		require.NoError(t, err)
		b, err := jet.OpenBucket(t.Context(), w.js, name)
		require.NoError(t, err)
		return b
	})
}

// The work queue is limited: what does not fit is refused at once, and what was accepted still ends.
func TestAFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{EntryMaxMsgs: 3})
	release := make(chan struct{})
	slow := through("a", 10)
	slow.Before = func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		<-release
		return pipeline.Continue(), nil
	}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, slow)})
	r := chatRequest()
	r.Submit = true
	var all []pipeline.Pending
	for range 3 {
		all = append(all, accept(t, n, r))
	}
	_, err := n.Accept(t.Context(), r)
	f := messages.AsFault(err, "")
	require.Equal(t, messages.Overloaded, f.Code, f.Message)
	require.True(t, f.Retryable())
	close(release)
	for _, p := range all {
		require.Nil(t, wait(t, p).Fault)
	}
	w.settled()
}

// A body can be a request of two APIs. Under one key the second caller would be given an answer in the form of the
// first.
func TestAKeyIsForOneWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t)})
	for i, wires := range [][2]messages.Wire{{"", messages.MessagesWire},
		{messages.ResponsesWire, messages.EmbeddingsWire},
		{messages.MessagesWire, messages.ChatWire}} {
		r := chatRequest()
		r.IdempotencyKey, r.Wire = fmt.Sprint("key-", i), wires[0]
		first := wait(t, accept(t, n, r))
		require.Equal(t, first.ID, wait(t, accept(t, n, r)).ID, "the same request")
		r.Wire = wires[1]
		_, err := n.Accept(t.Context(), r)
		require.Error(t, err, wires)
		require.Equal(t, messages.IdempotencyMismatch, messages.AsFault(err, "").Code, wires)
	}
	w.settled()
}

// A process runs no more stored calls of a class at once than it may.
func TestAProcessRunsSoManyStoredCallsAtOnce(t *testing.T) {
	t.Parallel()
	const most = 4
	w := newWorld(t, bus.Config{Running: most})
	var now, peak atomic.Int64
	busy := through("a", 10)
	busy.Before = func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
		n := now.Add(1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		reach(ctx, time.Now().Add(5*time.Millisecond)) // simulated: work that would overlap
		now.Add(-1)
		return pipeline.Continue(), nil
	}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, busy)})
	r := chatRequest()
	r.Keep = true
	var all []pipeline.Pending
	for range 40 {
		all = append(all, accept(t, n, r))
	}
	for _, p := range all {
		require.Nil(t, wait(t, p).Fault)
	}
	require.LessOrEqual(t, peak.Load(), int64(most))
	w.settled()
}

// A question that is first read after its time is dropped and counted, not run.
func TestALateQuestionIsNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var runs atomic.Int64
	counts := through("a", 10)
	counts.After = nil
	counts.Before = func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		runs.Add(1)
		return pipeline.Continue(), nil
	}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, counts)})
	nc := w.conn()
	asked, err := nc.SubscribeSync("shallot.v1.hop.>")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	r := chatRequest()
	r.Deadline = time.Now().Add(3 * time.Second)
	require.Nil(t, wait(t, accept(t, n, r)).Fault)
	late, err := asked.NextMsg(30 * time.Second)
	require.NoError(t, err)
	reach(t.Context(), r.Deadline.Add(10*time.Millisecond))
	copied := &nats.Msg{Subject: late.Subject, Reply: late.Reply, Header: late.Header, Data: late.Data}
	require.NoError(t, nc.PublishMsg(copied))
	require.Eventually(t, func() bool {
		d, err := n.Diagnostics(t.Context())
		require.NoError(t, err)
		return strings.Contains(string(rawjson.Encode(d)), `"lateHops":1`)
	}, 30*time.Second, 20*time.Millisecond)
	require.EqualValues(t, 1, runs.Load())
}

// A class that nobody serves is named by whoever ends the call for it, who also says that nothing was executed.
func TestAnAbsentTargetIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Manager: manager(t, through("a", 10))})
	for _, keep := range []bool{false, true} {
		r := chatRequest()
		r.Keep = keep
		c := runsOut(t, n, r, known)
		require.Equal(t, messages.TargetAbsent, c.Fault.Code, c.Fault.Message)
		require.Contains(t, c.Fault.Message, "default")
		require.Contains(t, c.Fault.Message, "not executed")
		require.True(t, c.Fault.OfTarget())
	}
	w.settled()
}

// A server that is down is said at the caller's own deadline, with an idempotency key and without, and a stop ends.
func TestAServerThatIsDownIsSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv, err := embed.Start(embed.Options{Dir: dir, Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), URL: srv.ClientURL(), Log: testLog(), Direct: true})
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := classes(bus.Config{})
	require.NoError(t, bus.Provision(t.Context(), js, cfg))
	o := bus.Options{Config: cfg, Conn: nc, Log: testLog(), Entry: true, Targets: roles(pipeline.TargetFunc(echo))}
	n, err := bus.New(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	srv.Stop()
	for name, key := range map[string]string{"without a key": "", "with a key": "k"} {
		r := chatRequest()
		r.Submit, r.IdempotencyKey, r.Deadline = true, key, time.Now().Add(300*time.Millisecond)
		begin := time.Now()
		_, err := n.Accept(t.Context(), r)
		require.Contains(t, []messages.Code{messages.DeadlineExceeded, messages.StoreUnavailable, messages.OutcomeUnknown},
			code(t, err), name)
		require.Less(t, time.Since(begin), 30*time.Second, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	begin := time.Now()
	_ = n.Stop(ctx)
	require.Less(t, time.Since(begin), time.Minute, "a stop ends although the server is away")
}

// A node that has stopped answers nothing, although its connection lives on.
func TestAStoppedNodeIsDeaf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	o := bus.Options{Entry: true, Manager: manager(t, through("a", 10)), Targets: roles(pipeline.TargetFunc(echo))}
	n := w.start(o)
	nc := w.conn()
	_, err := nc.Request("$SRV.PING.shallot", nil, 30*time.Second)
	require.NoError(t, err)
	require.NoError(t, stop(n))
	for _, subject := range []string{"$SRV.PING.shallot", "shallot.v1.control.report", "shallot.v1.hop.model.before.a",
		messages.Subjects{}.Work(messages.Model, "default"), messages.Subjects{}.Process(n.Name(), "ping")} {
		_, err := nc.Request(subject, []byte(chatBody), 30*time.Second)
		require.ErrorIs(t, err, nats.ErrNoResponders, subject)
	}
	_, err = n.Accept(t.Context(), chatRequest())
	require.Contains(t, []messages.Code{messages.Stopping, messages.Overloaded}, code(t, err))
}

// How a person may write a switch into its bucket, and what does not switch (HT-1, HT-3, HT-4).
func TestSwitchesByKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	stage, guard := through("a", 10), through("guard", 1)
	stage.Alias, guard.Tier = "DocumentsInterceptor", pipeline.Mandatory
	m := manager(t, guard, stage, through("mark", 20))
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: m})
	kv, err := w.js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)
	on := func(m *pipeline.Manager, name string) bool { s, _ := m.Get(messages.Model, name); return s.Enabled() }
	marked := true
	put := func(key, value string) { // and waits for a switch of another stage: keys are followed in order
		t.Helper()
		_, err := kv.PutString(t.Context(), key, value)
		require.NoError(t, err)
		marked = !marked
		_, err = kv.PutString(t.Context(), "stage.model.mark.enabled", fmt.Sprint(marked))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return on(m, "mark") == marked }, 30*time.Second, time.Millisecond)
	}
	for _, value := range []string{"false", "FALSE", " false\n", "False", "false a"} {
		put("stage.model.a.enabled", value)
		require.False(t, on(m, "a"), "%q", value)
		put("stage.model.a.enabled", "true\n")
		require.True(t, on(m, "a"))
	}
	for key, value := range map[string]string{"stage.model.a.enabled": "perhaps", "stage.tool.a.enabled": "false",
		"stage.model.nobody.enabled": "false", "stage.model.a": "false"} {
		put(key, value)
		require.True(t, on(m, "a"), "%s %s", key, value)
	}
	for _, value := range []string{"false", "false other"} {
		put("stage.model.guard.enabled", value)
		require.True(t, on(m, "guard"), "a mandatory stage is not turned off without its name: %q", value)
	}
	put("stage.model.guard.enabled", "false guard")
	require.False(t, on(m, "guard"))
	put("stage.model.guard.enabled", "true")
	_, err = n.Switch(t.Context(), "guard", false, "guard", "test")
	require.NoError(t, err)
	put("stage.model.DocumentsInterceptor.enabled", "false")
	require.False(t, on(m, "a"), "by the class name")
	late := manager(t, guard, stage, through("mark", 20))
	w.node(bus.Options{Manager: late})
	require.False(t, on(late, "guard"), "what was confirmed holds for who starts later")
	require.False(t, on(late, "a"), "of two keys for one stage the later wins")
}

// A cancel during the wait for another attempt ends it at once, whoever says it (RT-9).
func TestACancelCutsAWaitShort(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		var runs atomic.Int32
		m := manager(t, again(messages.Model, 5, 30*time.Second))
		n := w.node(bus.Options{Entry: true, Targets: roles(counted(&runs)), Manager: m})
		nc := w.conn()
		for name, cancel := range map[string]func(p pipeline.Pending){
			"they leave": func(p pipeline.Pending) { p.Leave() },
			"a message": func(p pipeline.Pending) {
				require.NoError(t, nc.Publish(messages.Subjects{}.Cancel(p.ID()), nil))
			},
		} {
			before := runs.Load()
			p := accept(t, n, chatRequest())
			require.Eventually(t, func() bool { return runs.Load() == before+1 }, 30*time.Second, time.Millisecond, name)
			cancel(p)
			c := wait(t, p)
			require.Equal(t, messages.Cancelled, c.Fault.Code, name)
			require.EqualValues(t, before+1, runs.Load(), name)
		}
	})
}
