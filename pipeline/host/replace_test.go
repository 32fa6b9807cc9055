package host_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
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
	h := apitest.Host(t, "", func(o *host.Options) {
		o.Stages = list
		o.Resolve = func(registry tool.Tools) tool.Tools { return resolver{registry, say} }
		o.Executors = toolbox.Executors{"go": toolbox.ExecutorFunc(func(_ context.Context, inv toolbox.Invocation) (
			toolbox.Result, error) {
			say("executor")
			return toolbox.Result{Content: inv.Arguments}, nil
		})}
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
