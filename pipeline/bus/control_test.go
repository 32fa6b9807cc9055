package bus_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// Statistics are those of all processes, and a switch reaches them all.
func TestStatisticsAndSwitchesAreThoseOfAllProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	make := func() *bus.Node {
		return w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)),
			Manager: manager(t, through("s", 10))})
	}
	a, b := make(), make()
	for _, n := range []*bus.Node{a, b} {
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	}
	require.Eventually(t, func() bool { // a process that is slow to answer is missing from the sum
		stats, err := a.Stats(t.Context())
		require.NoError(t, err)
		return stats.Interceptors[0].Invocations == 2
	}, 30*time.Second, 10*time.Millisecond)
	_, err := a.Switch(t.Context(), "s", false, "", "me")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return len(wait(t, accept(t, b, chatRequest())).Slip.Path) == 1
	}, 30*time.Second, 10*time.Millisecond)
	_, err = b.Diagnostics(t.Context())
	require.NoError(t, err)
}

// What a process has counted counts on when it has ended, also for processes that came later (BU-13).
func TestStatisticsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	o := func() bus.Options {
		return bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10))}
	}
	stays, ends := w.node(o()), w.start(o())
	for _, n := range []*bus.Node{stays, ends, ends} {
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	}
	require.NoError(t, stop(ends))
	came := w.node(o())
	require.Nil(t, wait(t, accept(t, came, chatRequest())).Fault)
	for _, n := range []*bus.Node{stays, came} {
		for range 2 {
			require.Eventually(t, func() bool {
				stats, err := n.Stats(t.Context())
				require.NoError(t, err)
				return stats.Interceptors[0].Invocations == 4
			}, 30*time.Second, 10*time.Millisecond)
		}
	}
}

// A switch whose key is deleted is back at its default at once, in every process: on if the configuration has the stage
// on, off if it has it off; and while a key by the stage's other name is there, that one holds (BU-12).
func TestADeletedSwitchIsTheDefaultEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var managers []*pipeline.Manager
	for range 2 {
		on, off := through("on", 10), through("off", 20)
		on.Alias = "OnStage"
		m := manager(t, on)
		require.NoError(t, m.Register(off, false))
		managers = append(managers, m)
		w.node(bus.Options{Manager: m})
	}
	enabled := func(name string, want bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, m := range managers {
				if s, ok := m.Get(messages.Model, name); !ok || s.Enabled() != want {
					return false
				}
			}
			return true
		}, 30*time.Second, 5*time.Millisecond, "%s is %t in every process", name, want)
	}
	kv, err := w.js.KeyValue(t.Context(), "shallot_control")
	require.NoError(t, err)
	put := func(name, value string) {
		_, err := kv.Put(t.Context(), "stage.model."+name+".enabled", []byte(value))
		require.NoError(t, err)
	}
	put("on", "false")
	put("off", "true")
	enabled("on", false)
	enabled("off", true)
	require.NoError(t, kv.Delete(t.Context(), "stage.model.on.enabled"))
	require.NoError(t, kv.Purge(t.Context(), "stage.model.off.enabled"))
	enabled("on", true)
	enabled("off", false)

	put("on", "true")
	put("OnStage", "false")
	enabled("on", false)
	require.NoError(t, kv.Delete(t.Context(), "stage.model.on.enabled"))
	put("off", "true")
	enabled("off", true)
	enabled("on", false)
	require.NoError(t, kv.Delete(t.Context(), "stage.model.OnStage.enabled"))
	enabled("on", true)
}

// What waits for a stage is known where the calls are, by the name of the stage, while no answer has come.
func TestTheBacklogOfAStageIsKnownWhileItWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	release := make(chan struct{})
	slow := through("slow_one", 10)
	slow.Before = func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return pipeline.Continue(), nil
	}
	w.node(bus.Options{Manager: manager(t, slow), StageSlots: 1})
	owner := w.node(bus.Options{Entry: true, Hosts: nobody, Targets: roles(pipeline.TargetFunc(echo)),
		Manager: manager(t, slow)})
	var calls []pipeline.Pending
	for range 3 {
		calls = append(calls, accept(t, owner, chatRequest()))
	}
	require.Eventually(t, func() bool { return owner.Asked()["model/slow_one"] == 3 }, 30*time.Second, time.Millisecond)
	raw, err := owner.Diagnostics(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(raw)
	require.NoError(t, err)
	require.Contains(t, string(text), `"asked":{"model/slow_one":3}`)
	close(release)
	for _, c := range calls {
		require.Nil(t, wait(t, c).Fault)
	}
	require.Empty(t, owner.Asked())
}
