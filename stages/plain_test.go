package stages_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// witness notes what a phase does beside its call.
type witness struct {
	pipeline.Store
	deeds []string
}

func (w *witness) did(what string) { w.deeds = append(w.deeds, what) }

func (w *witness) Get(ctx context.Context, key string) (pipeline.StoreEntry, error) {
	w.did("get")
	return w.Store.Get(ctx, key)
}

func (w *witness) Put(ctx context.Context, key string, value []byte, ttl time.Duration, when pipeline.Condition) (
	uint64, error) {
	w.did("put")
	return w.Store.Put(ctx, key, value, ttl, when)
}

func (w *witness) Publish(context.Context, string, any) error {
	w.did("publish")
	return nil
}

func (w *witness) Write(b []byte) (int, error) {
	w.did("log")
	return len(b), nil
}

// watched notes which phases of the stage are plain, and what they do all the same.
func (w *witness) watched(t *testing.T, s pipeline.Stage, plain map[string]bool) pipeline.Stage {
	watch := func(f pipeline.Func) pipeline.Func {
		if f == nil {
			return nil
		}
		return func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			_, phase := c.Slip.Stage()
			is, before := s.Plain(c), len(w.deeds)
			v, err := f(ctx, c)
			if is {
				plain[s.Name+" "+string(phase)] = true
				require.Empty(t, w.deeds[before:], "%s of %s needs more than the call", phase, s.Name)
			}
			return v, err
		}
	}
	s.Before, s.After = watch(s.Before), watch(s.After)
	return s
}

// A phase that says that it needs nothing but the call does nothing else.
func TestPlainPhases(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, body, reply string, configs map[string]string) map[string]bool {
		w := &witness{Store: &pipeline.Memory{}}
		d := harnessDeps()
		d.Store, d.Publish = func(string) pipeline.Store { return w }, w.Publish
		d.Log = slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
		h := &harness{Target: &harnessScript{Lines: map[string][]any{"p": {reply}, "qwen-turbo": {reply}}}}
		plain := map[string]bool{}
		for _, spec := range stages.All() {
			s, on, err := harnessMake(spec.Kind, spec.Name, configs[spec.Name], d)
			if spec.Kind != messages.Model || !on && err == nil || s.Plain == nil {
				continue
			}
			require.NoError(t, err)
			h.Stages = append(h.Stages, w.watched(t, s, plain))
		}
		c := harnessCall(body)
		c.Session = "s"
		require.Nil(t, h.Call(t, t.Context(), c).Fault)
		return plain
	}
	const body = `{"model":"p","messages":[{"role":"user","content":"hello"}]}`
	t.Run("a plain call", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []string{"audit before", "context-editing before", "logging before", "model-fallback after",
			"sub-agent before", "todo-list after", "tool-selection before"},
			slices.Sorted(maps.Keys(run(t, body, "hello", nil))))
	})
	t.Run("a call in which there is something to do", func(t *testing.T) {
		t.Parallel()
		const tools = `{"model":"p","messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function",` +
			`"function":{"name":"f"}}]}`
		require.Equal(t, []string{"model-fallback after"}, slices.Sorted(maps.Keys(run(t, tools, "so: [TODO_ADD: it]",
			map[string]string{"audit": "sync: true", "logging": "bodies: true", "context-editing": "max-tokens: 1",
				"sub-agent": "agents: [{name: a, keywords: [{keyword: x, weight: 9}]}]"}))))
	})
}
