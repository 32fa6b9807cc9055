package host_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

type resolver struct {
	tool.Tools
	said func(string)
}

func (r resolver) Get(ctx context.Context, name string) (*tool.Definition, error) {
	r.said("resolver")
	return r.Tools.Get(ctx, strings.TrimPrefix(name, "v2_"))
}

// S2-PIPE-2: each step of S2-PIPE-1 can be replaced by itself: resolver, parser and validator, time limit, retry,
// fallback, formatter, executor.
func TestReplaceSteps(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	say := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(seen, what) {
			seen = append(seen, what)
		}
	}
	own := func(name string) pipeline.Stage {
		f := func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			say(name)
			return pipeline.Continue(), nil
		}
		return pipeline.Stage{Name: name, Kind: messages.Tool, Before: f, After: f}
	}
	steps := []string{"tool-fallback", "tool-arguments", "tool-retry", "tool-error", "timeout"}
	var list []pipeline.Stage
	for _, s := range steps {
		list = append(list, own(s))
	}
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file,
		[]byte("version: 1\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{
		Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second, Getenv: func(string) string { return "" },
		Stages:  list,
		Resolve: func(registry tool.Tools) tool.Tools { return resolver{registry, say} },
		Executors: toolbox.Executors{"go": toolbox.ExecutorFunc(func(_ context.Context, inv toolbox.Invocation) (
			toolbox.Result, error) {
			say("executor")
			return toolbox.Result{Content: inv.Arguments}, nil
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	c := end(t, h, pipeline.Request{Kind: messages.Tool, Tool: "v2_add", Body: []byte(`{"a":"not a number"}`)})
	require.Nil(t, c.Fault)
	require.Equal(t, `{"a":"not a number"}`, string(c.Reply()), "neither checked nor added")
	mu.Lock()
	defer mu.Unlock()
	require.ElementsMatch(t, append([]string{"resolver", "executor"}, steps...), seen)
	order := map[string]int{}
	for _, s := range h.Manager.Stages(messages.Tool) {
		order[s.Name] = s.Order
	}
	require.Equal(t, []int{10, 14, 30, 35, 50}, []int{order["tool-fallback"], order["tool-arguments"],
		order["tool-retry"], order["tool-error"], order["timeout"]})
}
