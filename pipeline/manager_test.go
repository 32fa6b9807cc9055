package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

func goOn(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }

func plain(kind messages.Kind, name string, order int) pipeline.Stage {
	return pipeline.Stage{Name: name, Kind: kind, Order: order, Before: goOn, After: goOn}
}

func manager(t *testing.T, stages ...pipeline.Stage) *pipeline.Manager {
	m := &pipeline.Manager{}
	for _, s := range stages {
		require.NoError(t, m.Register(s, true))
	}
	return m
}

func route(t *testing.T, m *pipeline.Manager, r pipeline.Route) string {
	slip, err := m.Build(r)
	require.NoError(t, err)
	var names []string
	for _, s := range slip.Stops {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func TestManagerOrder(t *testing.T) {
	t.Parallel()
	model := pipeline.Route{Kind: messages.Model}
	t.Run("stages registered as C, A, B run in order (CH-2 X-2)", func(t *testing.T) {
		t.Parallel()
		m := manager(t, plain(messages.Model, "c", 30), plain(messages.Model, "a", 10), plain(messages.Model, "b", 20))
		require.Equal(t, "a b c", route(t, m, model))
	})
	t.Run("a stage without an order gets 100, and ties go by registration (CH-3 S0-CHAIN-2)", func(t *testing.T) {
		t.Parallel()
		m := manager(t, plain(messages.Model, "a", 10), plain(messages.Model, "x", 0), plain(messages.Model, "l", 100))
		require.Equal(t, "a x l", route(t, m, model))
		require.Equal(t, pipeline.DefaultOrder, m.Stats()[1].Order)
	})
	t.Run("kinds do not mix (CH-20 X-4)", func(t *testing.T) {
		t.Parallel()
		m := manager(t, plain(messages.Model, "m", 30), plain(messages.Tool, "t", 30), plain(messages.Agent, "a", 30))
		require.Equal(t, "m", route(t, m, model))
		require.Equal(t, "t", route(t, m, pipeline.Route{Kind: messages.Tool}))
		require.Empty(t, m.Conflicts(), "equal orders of two kinds do not conflict (OC-3 X-4)")
	})
	t.Run("three stages at one order are one conflict (OC-2)", func(t *testing.T) {
		t.Parallel()
		classed := plain(messages.Tool, "b", 40)
		classed.Alias = "BInterceptor"
		m := manager(t, plain(messages.Tool, "a", 40), classed, plain(messages.Tool, "c", 40),
			plain(messages.Tool, "d", 50))
		require.Equal(t, []pipeline.OrderConflict{{Type: messages.Tool, Order: 40,
			Names: []string{"a", "BInterceptor", "c"}}}, m.Conflicts())
	})
	t.Run("two stages at one order run in the order of registration, every time, on every node (OC-4 X-49)",
		func(t *testing.T) {
			t.Parallel()
			for range 2 {
				m := manager(t, plain(messages.Model, "second", 50), plain(messages.Model, "first", 50),
					plain(messages.Model, "out", 20))
				for range 100 {
					require.Equal(t, "out second first", route(t, m, model))
				}
			}
		})
	t.Run("no conflict is an empty list, for JSON", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []pipeline.OrderConflict{}, manager(t).Conflicts())
	})
}

func TestManagerOnly(t *testing.T) {
	t.Parallel()
	audit, fixed := plain(messages.Model, "audit", 1), plain(messages.Model, "fixed", 15)
	audit.Tier, fixed.Tier = pipeline.Mandatory, pipeline.Fixed
	b := plain(messages.Model, "b", 20)
	b.Alias = "BInterceptor"
	m := manager(t, audit, fixed, b, plain(messages.Model, "c", 30), plain(messages.Model, "d", 40),
		plain(messages.Tool, "t", 40))
	require.True(t, m.Switch(messages.Model, "d", false))
	for want, only := range map[string][]string{
		"audit fixed b":   {"b", "d"}, // a disabled one is not taken (CH-19 X-48)
		"audit fixed b c": {"c", "BInterceptor"},
		"audit fixed":     {},
	} {
		require.Equal(t, want, route(t, m, pipeline.Route{Kind: messages.Model, Only: only}), "only %v", only)
	}
	require.Equal(t, "audit fixed b c", route(t, m, pipeline.Route{Kind: messages.Model}))
	for _, unknown := range []string{"nobody", "t", ""} {
		_, err := m.Build(pipeline.Route{Kind: messages.Model, Only: []string{"b", unknown}})
		f, ok := errors.AsType[*messages.Fault](err)
		require.True(t, ok, "unknown name %q (CH-19 X-48)", unknown)
		require.Equal(t, messages.InvalidRequest, f.Code)
		require.Equal(t, "Shallot-Only", f.Param)
		require.Contains(t, f.Message, "b, c, d", "it says which are known")
	}
	require.Equal(t, "audit fixed c", route(t, m, pipeline.Route{Kind: messages.Model, Skip: []string{"b"}}))
}

func TestManagerApplyTo(t *testing.T) {
	t.Parallel()
	s := plain(messages.Model, "s", 20)
	s.ApplyTo = []string{pipeline.ApplyAgent, pipeline.ApplySession}
	m := manager(t, s, plain(messages.Model, "all", 30))
	for apply, want := range map[string]string{pipeline.ApplyAgent: "s all", pipeline.ApplySession: "s all",
		pipeline.ApplyBare: "all"} {
		require.Equal(t, want, route(t, m, pipeline.Route{Kind: messages.Model, Apply: apply}), apply)
	}
}

func TestManagerRefuses(t *testing.T) {
	t.Parallel()
	m := manager(t, plain(messages.Model, "a", 10))
	mandatory := plain(messages.Model, "late", 10)
	mandatory.Tier = pipeline.Mandatory
	jumps := plain(messages.Model, "j", 10)
	jumps.Jumps = []string{"nowhere"}
	for name, s := range map[string]pipeline.Stage{
		"registered twice": plain(messages.Model, "a", 20), "a name": plain(messages.Model, "a.b", 10),
		"name is": plain(messages.Model, "", 10),
		"kind":    plain("other", "x", 10), "neither": {Name: "x", Kind: messages.Model, Order: 10},
		"mandatory": mandatory,
		"order 5":   plain(messages.Model, "x", 5), "order -1": plain(messages.Model, "x", -1), "jump target": jumps,
	} {
		require.ErrorContains(t, m.Register(s, true), name)
	}
	require.NoError(t, m.Register(plain(messages.Tool, "a", 10), true), "one name in two kinds is two stages")
	require.Len(t, m.Find("a"), 2)
}

func TestManagerSwitch(t *testing.T) {
	t.Parallel()
	model := pipeline.Route{Kind: messages.Model}
	m := manager(t, plain(messages.Model, "a", 10), plain(messages.Model, "x", 20), plain(messages.Model, "z", 30))
	require.NoError(t, m.Register(plain(messages.Model, "off", 25), false), "a stage may be registered switched "+
		"off (HT-7)")
	flight, err := m.Build(model)
	require.NoError(t, err)
	require.True(t, m.Switch(messages.Model, "x", false))
	require.True(t, m.Switch(messages.Model, "x", false), "switching to the current state is allowed (HT-5)")
	require.Equal(t, "a z", route(t, m, model), "a stage that is off is on no new route (HT-1 S0-MGR-5)")
	require.False(t, m.Stats()[1].Enabled, "the statistics show that it is off (HT-1)")
	require.Len(t, flight.Stops, 3, "a call in flight keeps its slip")
	require.True(t, m.Switch(messages.Model, "x", true))
	require.Equal(t, "a x z", route(t, m, model), "at its old position (HT-3)")
	require.False(t, m.Switch(messages.Model, "nobody", false), "an unknown name (HT-4)")
	require.False(t, m.Switch(messages.Tool, "x", false), "another kind (HT-4)")
	require.Equal(t, "a x z", route(t, m, model), "nothing changed (HT-4)")
}

// Stages are switched and registered during calls; each call sees a stage in both phases or in none (HT-6, S0-MGR-2).
func TestManagerTogglesDuringCalls(t *testing.T) {
	t.Parallel()
	shapes := []pipelinetest.Shape{{Name: "alpha", Order: 10, Before: true, After: true},
		{Name: "xray", Order: 20, Before: true, After: true}}
	stages := pipelinetest.Stages(messages.Model, shapes...)
	m := manager(t, stages...)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 100 {
			m.Switch(messages.Model, "xray", i%2 == 0)
			if i%10 == 0 {
				_ = m.Register(plain(messages.Tool, fmt.Sprint("t", i), 20), true)
			}
			m.Stats()
			m.Conflicts()
		}
	})
	saw := make([]int, 8)
	bad := make([]string, 8)
	for w := range saw {
		wg.Go(func() {
			for range 125 {
				c := pipelinetest.NewCall(messages.Model, []byte(`{}`))
				slip, err := m.Build(pipeline.Route{Kind: messages.Model})
				if err != nil {
					bad[w] = err.Error()
					return
				}
				c.Slip = slip
				if c, err = (pipeline.Local{Stages: stages,
					Target: pipelinetest.ScriptedTarget()}).Call(context.Background(), c); err != nil {
					bad[w] = err.Error()
					return
				}
				switch got := strings.Join(pipelinetest.Trace(c), " "); got {
				case "A.b X.b T X.a A.a":
					saw[w]++
				case "A.b T A.a":
				default:
					bad[w] = got
				}
				m.Fold(messages.Model, c.Slip)
			}
		})
	}
	wg.Wait()
	require.Equal(t, make([]string, 8), bad)
	total := 0
	for _, n := range saw {
		total += n
	}
	stats := m.Stats()
	require.EqualValues(t, 1000, stats[0].Invocations)
	require.EqualValues(t, total, stats[1].Invocations, "its count grows with its calls only (HT-1)")
	count, _ := m.Builds()
	require.EqualValues(t, 1000, count)
}

func TestManagerStatistics(t *testing.T) {
	t.Parallel()
	shapes := []pipelinetest.Shape{{Name: "alpha", Order: 10, Before: true, After: true, Keep: true},
		{Name: "xray", Order: 20, Before: true, After: true}}
	stages := pipelinetest.Stages(messages.Model, shapes...)
	m := manager(t, stages...)
	run := func(script pipelinetest.Script) *messages.Call {
		c := pipelinetest.NewCall(messages.Model, rawjson.SetField([]byte(`{}`), "script", rawjson.Encode(script)))
		var err error
		c.Slip, err = m.Build(pipeline.Route{Kind: messages.Model})
		require.NoError(t, err)
		c, err = pipelinetest.CallOverWire(t.Context(), stages, pipelinetest.ScriptedTarget(), c)
		require.NoError(t, err)
		m.Fold(messages.Model, c.Slip)
		return c
	}
	stat := func() pipeline.Stat { return m.Stats()[1] }
	require.Zero(t, stat().AvgMs(), "0 before any call (ST-1)")
	count, last := m.Builds()
	require.Zero(t, count)
	require.Zero(t, last)
	var nanos int64
	for range 3 {
		nanos += run(nil).Slip.Stops[1].Tally.Nanos
	}
	require.EqualValues(t, 3, stat().Invocations, "before and after are one (ST-1 ST-5)")
	require.Equal(t, nanos, stat().Nanos, "running times add up (ST-1)")
	require.InDelta(t, float64(nanos)/3/1e6, stat().AvgMs(), 1e-9, "the mean is over all invocations (ST-1)")
	require.Positive(t, nanos)
	require.Nil(t, stat().LastError, "no error yet (ST-2)")
	count, last = m.Builds()
	require.EqualValues(t, 3, count, "chains that were built are counted (ST-3)")
	require.GreaterOrEqual(t, last, time.Duration(0), "the time of the last build is kept (ST-3)")
	run(pipelinetest.Script{"X.a": {pipelinetest.ActError}})
	require.Equal(t, "broke", *stat().LastError, "the error is kept (ST-2)")
	require.EqualValues(t, 1, stat().Errors)
	run(nil)
	require.Equal(t, "broke", *stat().LastError, "the last one stays (ST-2)")
	run(pipelinetest.Script{"A.a": {pipelinetest.ActAgain}})
	require.EqualValues(t, 7, stat().Invocations, "another attempt is another invocation")
	m.Fold(messages.Tool, messages.Slip{Stops: []messages.Stop{{Name: "xray", Tally: messages.Tally{Count: 9}}}})
	m.Fold(messages.Model, messages.Slip{Stops: []messages.Stop{{Name: "gone", Tally: messages.Tally{Count: 9}}}})
	require.EqualValues(t, 7, stat().Invocations, "another kind's, or an unknown stage's, is not counted here")
}

// A step that runs twice from the same stored call counts once, because only the slip that went on counts (ST-6).
func TestRedeliveryCountsOnce(t *testing.T) {
	t.Parallel()
	s := plain(messages.Model, "x", 20)
	c := pipelinetest.Stage(t, s, &pipelinetest.Target{}, pipelinetest.NewCall(messages.Model, []byte(`{}`)))
	require.EqualValues(t, 1, c.Slip.Stops[0].Tally.Count)
}

func TestChangeUnderConcurrencyWithADeletingNeighbour(t *testing.T) {
	t.Parallel()
	var m pipeline.Memory
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			for range 200 {
				if rand.IntN(5) == 0 {
					errs[i] = errors.Join(errs[i], m.Delete(t.Context(), "k"))
				}
				_, err := pipeline.Change(t.Context(), &m, "k", time.Hour, func(v *int) (bool, error) {
					*v++
					return true, nil
				})
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}
