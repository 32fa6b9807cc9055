package bus_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// TestTrap_NatsD5_Micro: the service protocol's answers parse with nats.go/micro and the counts are true, although
// watermill receives.
func TestTrap_NatsD5_Micro(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10), through("b", 20)), Version: "1.2.3"})
	nc := w.conn()
	for range 7 {
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	}
	var ping micro.Ping
	require.NoError(t, json.Unmarshal(ask(t, nc, "$SRV.PING.shallot", "", nil).Data, &ping))
	require.Equal(t, "shallot", ping.Name)
	require.Equal(t, "1.2.3", ping.Version)
	require.Equal(t, micro.PingResponseType, ping.Type)
	var info micro.Info
	require.NoError(t, json.Unmarshal(ask(t, nc, "$SRV.INFO.shallot."+ping.ID, "", nil).Data, &info))
	require.Equal(t, micro.InfoResponseType, info.Type)
	require.Equal(t, "shallot.v1.hop.model.before.a", info.Endpoints[0].Subject)
	require.Equal(t, "a", info.Endpoints[0].QueueGroup)
	var stats micro.Stats
	require.NoError(t, json.Unmarshal(ask(t, nc, "$SRV.STATS.shallot."+ping.ID, "", nil).Data, &stats))
	require.Equal(t, micro.StatsResponseType, stats.Type)
	got := map[string]int{}
	for _, e := range stats.Endpoints {
		got[e.Name] = e.NumRequests
		require.Zero(t, e.NumErrors)
	}
	require.Equal(t, map[string]int{"model-before-a": 7, "model-after-a": 7, "model-before-b": 7, "model-after-b": 7,
		"target-model-default": 7, "target-tool-default": 0}, got)
}

// TestSwitchByKV: a key in the control bucket switches a stage on every process within a second, for calls that enter
// from then on.
func TestSwitchByKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	managers := []*pipeline.Manager{manager(t, through("a", 10)), manager(t, through("a", 10))}
	a := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: managers[0]})
	w.node(bus.Options{Entry: true, Manager: managers[1]})
	kv, err := w.js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)
	enabled := func(on bool) func() bool {
		return func() bool {
			for _, m := range managers {
				s, _ := m.Get(messages.Model, "a")
				if s.Enabled() != on {
					return false
				}
			}
			return true
		}
	}
	_, err = kv.PutString(t.Context(), "stage.model.a.enabled", "false")
	require.NoError(t, err)
	require.Eventually(t, enabled(false), time.Second, time.Millisecond)
	require.Equal(t, []string{"model"}, wait(t, accept(t, a, chatRequest())).Slip.Path)
	_, err = a.Switch(t.Context(), "a", true, "", "test")
	require.NoError(t, err)
	require.Eventually(t, enabled(true), time.Second, time.Millisecond)
	late := manager(t, through("a", 10))
	_, err = a.Switch(t.Context(), "a", false, "", "test")
	require.NoError(t, err)
	w.node(bus.Options{Manager: late})
	s, _ := late.Get(messages.Model, "a")
	require.False(t, s.Enabled(), "who starts later follows too")
}

// TestSwitchFormsByKV: how a person may write the key, and what does not switch (HT-1, HT-3, HT-4, contracts 2).
func TestSwitchFormsByKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	stage, guard := through("a", 10), through("guard", 1)
	stage.Alias, guard.Tier = "DocumentsInterceptor", pipeline.Mandatory
	build := func() *pipeline.Manager { return manager(t, guard, stage, through("mark", 20)) }
	m := build()
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: m})
	kv, err := w.js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)
	on := func(m *pipeline.Manager, name string) bool { s, _ := m.Get(messages.Model, name); return s.Enabled() }
	marked := true
	// put writes the key and then waits for a switch of another stage: keys are followed in order.
	put := func(key, value string) {
		t.Helper()
		_, err := kv.PutString(t.Context(), key, value)
		require.NoError(t, err)
		marked = !marked
		_, err = kv.PutString(t.Context(), "stage.model.mark.enabled", fmt.Sprint(marked))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return on(m, "mark") == marked }, 5*time.Second, time.Millisecond)
	}
	for _, value := range []string{"false", "FALSE", " false\n", "False", "false a"} {
		put("stage.model.a.enabled", value)
		require.False(t, on(m, "a"), "%q", value)
		put("stage.model.a.enabled", "true\n")
		require.True(t, on(m, "a"))
	}
	for key, value := range map[string]string{"stage.model.a.enabled": "perhaps", "stage.tool.a.enabled": "false", "stage.model.nobody.enabled": "false", "stage.model.a": "false"} {
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
	require.True(t, on(m, "guard"))
	_, err = n.Switch(t.Context(), "guard", false, "guard", "test")
	require.NoError(t, err)
	put("stage.model.DocumentsInterceptor.enabled", "false")
	require.False(t, on(m, "a"), "by the class name")

	late := build()
	w.node(bus.Options{Manager: late})
	require.False(t, on(late, "guard"), "what was confirmed holds for who starts later")
	require.False(t, on(late, "a"), "of two keys for one stage the later wins")
}

// TestStatisticsAddUp: each frame counts once over all processes, whatever process ended the call (ST-5, ST-6).
func TestStatisticsAddUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	stages := func() *pipeline.Manager { return manager(t, again("retry", 10, 2, 0), through("a", 20)) }
	o := bus.Options{Entry: true}
	o.Manager = stages()
	a := w.node(o)
	o.Manager = stages()
	b := w.node(o)
	w.node(bus.Options{Manager: stages(), Hosts: nobody, Targets: roles(pipeline.TargetFunc(echo))})
	for i := range 30 {
		r := chatRequest()
		r.Submit = i%3 == 0
		n := []*bus.Node{a, b}[i%2]
		p := accept(t, n, r)
		if r.Submit {
			_, err := n.Result(t.Context(), "default", p.ID())
			require.NoError(t, err)
			continue
		}
		require.Nil(t, wait(t, p).Fault)
	}
	w.settled()
	for _, n := range []*bus.Node{a, b} {
		s, err := n.Stats(t.Context())
		require.NoError(t, err)
		for _, row := range s.Interceptors {
			require.EqualValues(t, 60, row.Invocations, row.Stage)
			require.Zero(t, row.Errors)
		}
	}
}

// TestProvision: twice is once; what differs in what matters is refused by name; verify-only creates nothing.
func TestProvision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	require.NoError(t, bus.Provision(t.Context(), w.js, w.cfg), "again")
	verify := w.cfg
	verify.Verify = true
	require.NoError(t, bus.Provision(t.Context(), w.js, verify))
	verify.AckWait = 30 * time.Second
	require.ErrorContains(t, bus.Provision(t.Context(), w.js, verify), "ack wait")
	for _, name := range []string{jet.CallsStream, jet.HopsStream} {
		s, err := w.js.Stream(t.Context(), name)
		require.NoError(t, err)
		list := s.ListConsumers(t.Context())
		for c := range list.Info() {
			require.Equal(t, -1, c.Config.MaxDeliver, "lease.md B5: %s", c.Name)
			require.Empty(t, c.Config.BackOff, "lease.md 5: %s", c.Name)
			require.Equal(t, 10*time.Second, c.Config.AckWait, c.Name)
			require.Equal(t, jetstream.AckExplicitPolicy, c.Config.AckPolicy)
		}
	}
	empty := newBareWorld(t)
	verify.AckWait = 0
	err := bus.Provision(t.Context(), empty, verify)
	require.ErrorContains(t, err, jet.CallsStream)
	names := 0
	for range empty.StreamNames(t.Context()).Name() {
		names++
	}
	require.Zero(t, names, "verifying makes nothing")
	_, err = empty.CreateStream(t.Context(), jetstream.StreamConfig{Name: jet.CallsStream, Subjects: []string{"shallot.v1.call.entry.>"}})
	require.NoError(t, err)
	require.ErrorContains(t, bus.Provision(t.Context(), empty, w.cfg), "retention")
}
