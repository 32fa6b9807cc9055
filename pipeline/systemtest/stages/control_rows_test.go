package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// site is an installation of one or more processes, each with a manager and a control of its own.
type site struct {
	managers []*pipeline.Manager
	controls []pipeline.Control
	call     func(t *testing.T, process int, user string) *messages.Call
}

// registry is the default chain, all stages as they are on by default but logging, and one that fails for a user
// "fail".
func registry(t *testing.T, d stages.Deps) *pipeline.Manager {
	t.Helper()
	m := &pipeline.Manager{}
	d.Tools, d.Serves = tool.NewRegistry(&pipeline.Memory{}, &args.Parser{}, nil), func(string) bool { return true }
	for _, spec := range stages.All() {
		s, on, err := spec.Make(spec.Config(), d)
		require.NoError(t, err)
		require.NoError(t, m.Register(s, on && s.Name != "logging"))
	}
	require.NoError(t, m.Register(pipeline.Stage{Name: "fragile", Kind: messages.Model, Order: 50,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.User == "fail" {
				return pipeline.Verdict{}, errors.New("broke")
			}
			return pipeline.Continue(), nil
		}}, true))
	return m
}

var says1 = pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	c.SetReply(chat.TextReply("x", "m", "ok", 1))
	return nil
})

func oneProcess(t *testing.T) site {
	m := registry(t, stages.Deps{Store: memories()})
	return site{managers: []*pipeline.Manager{m}, controls: []pipeline.Control{pipeline.LocalControl{Manager: m}},
		call: func(t *testing.T, _ int, user string) *messages.Call {
			c := messages.NewCall(messages.Model, "t1", request(messageOf("user", "hi")))
			c.User = user
			var err error
			c.Slip, err = m.Build(pipeline.Route{Kind: messages.Model, Apply: pipeline.ApplyBare})
			require.NoError(t, err)
			var list []pipeline.Stage
			for _, s := range m.Stages(messages.Model) {
				list = append(list, s.Stage)
			}
			c, err = pipeline.Chain(list, says1).Call(t.Context(), c)
			require.NoError(t, err)
			m.Fold(messages.Model, c.Slip)
			return c
		}}
}

func twoNodes(t *testing.T) site {
	w, s, nodes := newWorld(t, bus.Config{}), site{}, []*bus.Node{}
	for range 2 {
		m := registry(t, stages.Deps{Store: func(name string) pipeline.Store { return w.stores[name] }})
		n := w.node(t, m, says1)
		nodes, s.managers, s.controls = append(nodes, n), append(s.managers, m), append(s.controls, n)
	}
	s.call = func(t *testing.T, i int, user string) *messages.Call {
		p, err := nodes[i%2].Accept(t.Context(), pipeline.Request{Kind: messages.Model, Tenant: "t1", User: user,
			Body: request(messageOf("user", "hi")), Deadline: time.Now().Add(30 * time.Second)})
		require.NoError(t, err)
		c, err := p.Wait(t.Context(), nil)
		require.NoError(t, err)
		return c
	}
	return s
}

func TestControlRowsInProcess(t *testing.T) {
	t.Parallel()
	controlRows(t, oneProcess(t))
}

func TestControlRowsOnTheBus(t *testing.T) {
	t.Parallel()
	controlRows(t, twoNodes(t))
}

// controlRows goes through the rows one after another, on one site.
func controlRows(t *testing.T, s site) {
	const stage, class = "logging", "LoggingModelInterceptor"
	all := len(s.controls)
	stat := func(t *testing.T, name string) pipeline.StageStats {
		t.Helper()
		st, err := s.controls[all-1].Stats(t.Context())
		require.NoError(t, err)
		i := slices.IndexFunc(st.Interceptors, func(r pipeline.StageStats) bool {
			return r.Stage == name &&
				r.Type == messages.Model
		})
		require.GreaterOrEqual(t, i, 0)
		return st.Interceptors[i]
	}
	with := "audit.beforeModel,logging.beforeModel,model,logging.afterModel,fragile.afterModel," +
		"model-fallback.afterModel,audit.afterModel"
	without := strings.NewReplacer("logging.beforeModel,", "", "logging.afterModel,", "").Replace(with)
	path := func(t *testing.T, process int) string { return strings.Join(s.call(t, process, "").Slip.Path, ",") }
	flip := func(t *testing.T, name string, on bool) error {
		_, err := s.controls[0].Switch(t.Context(), name, on, "", "test")
		return err
	}
	// everywhere waits until each process has followed. The bound of HT-8, a second, is held in systemtest/process; a
	// loaded machine that runs all tests at once may take longer.
	everywhere := func(t *testing.T, on bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(s.managers, func(m *pipeline.Manager) bool {
				x, _ := m.Get(messages.Model, stage)
				return x.Enabled() != on
			})
		}, 30*time.Second, time.Millisecond)
	}
	t.Run("a stage that is off in the configuration stays off until switched on (HT-7)", func(t *testing.T) {
		require.Equal(t, without, path(t, 0))
		require.False(t, stat(t, stage).Enabled)
		require.NoError(t, flip(t, class, true))
		everywhere(t, true)
		require.Equal(t, with, path(t, 0))
	})
	t.Run("a stage that is switched off is off in every process (HT-1 HT-8)", func(t *testing.T) {
		was := stat(t, stage).Invocations
		require.NoError(t, flip(t, class, false))
		everywhere(t, false)
		for i := range all {
			require.Equal(t, without, path(t, i))
		}
		require.False(t, stat(t, stage).Enabled)
		require.Equal(t, was, stat(t, stage).Invocations)
	})
	t.Run("switching off twice is no error (HT-5)", func(t *testing.T) {
		require.NoError(t, flip(t, class, false))
		require.NoError(t, flip(t, stage, false))
	})
	t.Run("on again at its old position (HT-3)", func(t *testing.T) {
		require.NoError(t, flip(t, stage, true))
		everywhere(t, true)
		for i := range all {
			require.Equal(t, with, path(t, i))
		}
	})
	t.Run("an unknown name changes nothing (HT-4)", func(t *testing.T) {
		var f *messages.Fault
		require.ErrorAs(t, flip(t, "nobody", false), &f)
		require.Equal(t, messages.NotFound, f.Code)
		require.Equal(t, with, path(t, 0))
	})
	t.Run("under load each call sees a stage in both phases or in none (HT-6)", func(t *testing.T) {
		stop := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				if _, err := s.controls[0].Switch(context.Background(), stage, i%2 == 1, "", "test"); err != nil {
					done <- err
					return
				}
			}
		}()
		var paths []string
		for i := range 60 {
			paths = append(paths, path(t, i))
		}
		close(stop)
		require.NoError(t, <-done)
		for _, p := range paths {
			require.Contains(t, []string{with, without}, p)
		}
		require.NoError(t, flip(t, stage, true))
		everywhere(t, true)
	})
	t.Run("three calls are three invocations (ST-1 ST-5)", func(t *testing.T) {
		require.Zero(t, stat(t, "call-limit").Invocations)
		require.Zero(t, stat(t, "call-limit").AvgDurationMs)
		was := stat(t, stage).Invocations
		for i := range 3 {
			path(t, i)
		}
		now := stat(t, stage)
		require.EqualValues(t, 3, now.Invocations-was)
		require.InDelta(t, float64(now.Nanos)/float64(now.Invocations)/1e6, now.AvgDurationMs, 1e-9)
	})
	t.Run("the last error is shown, or none (ST-2)", func(t *testing.T) {
		require.Nil(t, stat(t, "fragile").LastError)
		s.call(t, 0, "fail")
		require.Contains(t, *stat(t, "fragile").LastError, "broke")
		require.EqualValues(t, 1, stat(t, "fragile").Errors)
		require.Nil(t, stat(t, stage).LastError)
	})
	t.Run("chains that were built are counted and timed (ST-3)", func(t *testing.T) {
		built := func() (n int64) {
			for _, m := range s.managers {
				b, _ := m.Builds()
				n += b
			}
			return n
		}
		was := built()
		for i := range 4 {
			path(t, i)
		}
		require.EqualValues(t, 4, built()-was)
		var now pipeline.Stats
		require.Eventually(t, func() bool { // a process that is slow to answer is missing from the sum
			var err error
			now, err = s.controls[0].Stats(t.Context())
			return err == nil && now.ChainBuildCount == built()
		}, 30*time.Second, 10*time.Millisecond)
		require.GreaterOrEqual(t, now.LastBuildTimeMs, 0.0)
	})
	conflicts := func(t *testing.T) []string {
		t.Helper()
		st, err := s.controls[0].Stats(t.Context())
		require.NoError(t, err)
		var out []string
		for _, c := range st.OrderConflicts {
			out = append(out, fmt.Sprint(c.Type, " ", c.Order, " ", c.Names))
		}
		return out
	}
	const known = "tool 20 [CachingToolInterceptor LargeResultEvictionInterceptor]"
	t.Run("one conflict in the default set, none between kinds (OC-1 OC-3)", func(t *testing.T) {
		require.Equal(t, []string{known}, conflicts(t))
	})
	t.Run("conflicts in statistics and diagnostics, both forms of the body (OC-5 ST-4)", func(t *testing.T) {
		d, err := s.controls[0].Diagnostics(t.Context())
		require.NoError(t, err)
		st, err := s.controls[0].Stats(t.Context())
		require.NoError(t, err)
		for _, v := range []any{d, st} {
			var body map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(rawjson.Encode(v), &body))
			require.JSONEq(t, `[{"type":"tool","order":20,"names":["CachingToolInterceptor","LargeResultEvictionInterceptor"]}]`,
				string(body["orderConflicts"]))
			for _, key := range []string{"modelInterceptors", "toolInterceptors", "cacheStats", "retryStats", "interceptors",
				"chainBuildCount", "lastBuildTimeMs"} {
				require.Contains(t, body, key)
			}
		}
	})
	t.Run("more than two stages at one order are one conflict (OC-2 OC-4)", func(t *testing.T) {
		pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
		for _, m := range s.managers {
			for _, n := range []string{"x", "y", "z"} {
				require.NoError(t, m.Register(pipeline.Stage{Name: n, Kind: messages.Tool, Order: 57, Before: pass}, true))
			}
		}
		require.Equal(t, []string{known, "tool 57 [x y z]"}, conflicts(t))
		for range 20 {
			for i, m := range s.managers {
				slip, err := m.Build(pipeline.Route{Kind: messages.Tool})
				require.NoError(t, err)
				var names []string
				for _, st := range slip.Stops {
					names = append(names, st.Name)
				}
				require.Equal(t, []string{"x", "y", "z"}, names[len(names)-3:], "process %d", i)
			}
		}
	})
}
