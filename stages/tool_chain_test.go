package stages_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// toolSet is a registry of definitions and the Go functions behind them.
type toolSet struct {
	mu    sync.Mutex
	defs  map[string]*tool.Definition
	funcs toolbox.GoFuncs
	runs  map[string]int
}

func (s *toolSet) Get(_ context.Context, name string) (*tool.Definition, error) {
	for _, d := range s.defs {
		if name == d.Name || name == d.Ref() {
			return d, nil
		}
	}
	return nil, messages.NewFault(messages.ToolNotFound, "there is no tool '%s'", name)
}

// Runs is how often a tool has run.
func (s *toolSet) Runs(tool string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[tool]
}

// tool is a definition and what its n-th run (from 1) does.
type chainTool struct {
	tool.Definition
	Do func(ctx context.Context, n int, args json.RawMessage) (toolbox.Result, error)
}

// invocation is the key of a run's toolbox.Invocation in the context.
type invocation struct{}

// streams is a tool that gives chunks.
func streams(
	d tool.Definition, do func(ctx context.Context, n int, inv toolbox.Invocation) (toolbox.Result, error),
) chainTool {
	return chainTool{d, func(ctx context.Context, n int, _ json.RawMessage) (toolbox.Result, error) {
		return do(ctx, n, ctx.Value(invocation{}).(toolbox.Invocation))
	}}
}

// toolChain is the tool chain of the registry over real executors.
type toolChain struct {
	*toolSet
	Deps   stages.Deps
	Stages []pipeline.Stage
	Target *toolbox.Target
	harness
}

// newToolChain builds every tool stage that is on. configs are YAML by stage; "off" leaves a stage out.
func newToolChain(t testing.TB, d stages.Deps, configs map[string]string, tools ...chainTool) *toolChain {
	t.Helper()
	set := &toolSet{defs: map[string]*tool.Definition{}, funcs: toolbox.GoFuncs{}, runs: map[string]int{}}
	for _, x := range tools {
		def := x.Definition
		if def.Version == "" {
			def.Version = "1"
		}
		def.Executor, def.Source = tool.Executor{Kind: tool.ExecGo}, tool.Operator
		require.NoError(t, def.Validate(&args.Parser{}))
		set.defs[def.Name] = &def
		set.funcs[def.Name] = func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			set.mu.Lock()
			set.runs[def.Name]++
			n := set.runs[def.Name]
			set.mu.Unlock()
			return x.Do(context.WithValue(ctx, invocation{}, inv), n, inv.Arguments)
		}
	}
	if d.Store == nil {
		d.Store = harnessDeps().Store
	}
	if d.Tools == nil {
		d.Tools = set
	}
	c := &toolChain{toolSet: set, Deps: d}
	c.Target = &toolbox.Target{
		Tools: set, Rules: tool.DefaultRules(), Executors: toolbox.Executors{tool.ExecGo: set.funcs},
		Pool: toolbox.NewPool(toolbox.DefaultPool()),
	}
	for _, spec := range stages.All() {
		if spec.Kind != messages.Tool || configs[spec.Name] == "off" {
			continue
		}
		s, on, err := harnessMake(messages.Tool, spec.Name, configs[spec.Name], d)
		require.NoError(t, err)
		if on {
			c.Stages = append(c.Stages, s)
		}
	}
	slices.SortStableFunc(c.Stages, func(a, b pipeline.Stage) int { return a.Order - b.Order })
	c.Target.Filters = func(stage string) (stream.FilterMaker, bool) {
		i := slices.IndexFunc(c.Stages, func(s pipeline.Stage) bool { return s.Name == stage && s.Filter != nil })
		if i < 0 {
			return nil, false
		}
		return c.Stages[i].Filter, true
	}
	c.harness = harness{Stages: c.Stages, Target: c.Target}
	return c
}

// Run sends a call through the chain over the wire, each phase delivered twice.
func (c *toolChain) Run(t testing.TB, name, args string) *messages.Call {
	t.Helper()
	return c.Call(t, t.Context(), toolCall(name, args))
}

// Plain sends a call through the chain in process, each phase once, with real waits.
func (c *toolChain) Plain(t testing.TB, call *messages.Call) *messages.Call {
	t.Helper()
	out, err := pipeline.Chain(c.Stages, c.Target).Call(t.Context(), call)
	require.NoError(t, err)
	return out
}

func (c *toolChain) stage(t testing.TB, name string) pipeline.Stage {
	t.Helper()
	for _, s := range c.Stages {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stage %s", name)
	return pipeline.Stage{}
}

func toolCall(name, args string) *messages.Call {
	c := messages.NewCall(messages.Tool, "t1", []byte(args))
	c.Tool = name
	c.Deadline = time.Now().Add(time.Minute)
	return c
}

func reading(name string) tool.Definition {
	return tool.Definition{Name: name, Policy: tool.Policy{Effect: tool.EffectRead}}
}

// gives is a tool that gives one thing: an error, or content as JSON or text.
func gives(def tool.Definition, what any) chainTool {
	return chainTool{def, func(context.Context, int, json.RawMessage) (toolbox.Result, error) {
		switch w := what.(type) {
		case error:
			return toolbox.Result{}, w
		case toolbox.Result:
			return w, nil
		case string:
			return toolbox.Result{Content: []byte(w)}, nil
		}
		return toolbox.Result{Content: rawjson.Encode(what)}, nil
	}}
}

// fails is a tool that fails so often and then gives a result.
func fails(def tool.Definition, times int, err error) chainTool {
	return chainTool{def, func(_ context.Context, n int, _ json.RawMessage) (toolbox.Result, error) {
		if n <= times {
			return toolbox.Result{}, err
		}
		return toolbox.Result{Content: []byte(`{"ok":true}`)}, nil
	}}
}

func metadata(t testing.TB, c *messages.Call) map[string]any {
	t.Helper()
	m := map[string]any{}
	c.Noted(messages.NoteMetadata, &m)
	return m
}

func note[T any](c *messages.Call, key string) T {
	var v T
	c.Noted(key, &v)
	return v
}

// The specification's nine and ours: one conflict, at tool 20, found and still in a fixed order.
func TestDefaultOrders(t *testing.T) {
	t.Parallel()
	var m pipeline.Manager
	set := &toolSet{}
	d := harnessDeps()
	d.Tools = set
	d.Serves = func(string) bool { return true }
	for _, spec := range stages.All() {
		s, on, err := spec.Make(spec.Config(), d)
		require.NoError(t, err, spec.Name)
		require.NoError(t, m.Register(s, on))
	}
	conflicts := m.Conflicts()
	require.Len(t, conflicts, 1, "(OC-1 X-3 S0-ORDER-1)")
	require.Equal(t, pipeline.OrderConflict{Type: messages.Tool, Order: 20,
		Names: []string{"CachingToolInterceptor", "LargeResultEvictionInterceptor"}}, conflicts[0])
	names := []string{}
	for _, s := range m.Stages(messages.Tool) {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"audit", "tool-fallback", "tool-arguments", "approval", "tool-cache",
		"large-result-eviction", "tool-retry", "tool-error",
		"rate-limit", "concurrency", "tool-pii", "timeout"}, names, "eviction inner to the cache; X-49 (X-5)")
}

func TestToolChainPath(t *testing.T) {
	t.Parallel()
	c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), map[string]any{"big": json.Number("9007199254740993")}))
	out := c.Run(t, "x", `{"a":1}`)
	require.Nil(t, out.Fault)
	require.Equal(t, `{"big":9007199254740993}`, string(out.Reply()))
	require.NotContains(t, out.Notes, messages.NoteDegraded, "F3-12")
	require.NotContains(t, metadata(t, out), "fallback", "F3-12")
	require.Equal(t, 1, c.Runs("x"))
	require.Contains(t, out.Slip.Path, "tool-retry.afterTool")
}

var noFallback = map[string]string{"tool-fallback": "off", "tool-cache": "off"}

func limited(t testing.TB, d stages.Deps, configs map[string]string, tools ...chainTool) *toolChain {
	t.Helper()
	all := map[string]string{}
	for k, v := range noFallback {
		all[k] = v
	}
	for k, v := range configs {
		all[k] = v
	}
	return newToolChain(t, d, all, tools...)
}

func TestToolStageConfigs(t *testing.T) {
	t.Parallel()
	d := harnessDeps()
	d.Tools = &toolSet{}
	for _, row := range []struct{ stage, config string }{
		{"tool-cache", "ttl: 0s"}, {"tool-cache", "max-entries: 0"}, {"tool-cache", "sweep: 0s"},
		{"tool-cache", "no-such-key: 1"},
		{"tool-retry", "max-retries: -1"}, {"tool-retry", "max-retries: 100"}, {"tool-retry", "multiplier: 0.5"},
		{"tool-retry", "jitter: 2"},
		{"tool-retry", "max-delay: 1ms"}, {"tool-retry", "executed-by: me"}, {"tool-retry", "base-delay: -1s"},
		{"large-result-eviction", "token-threshold: 0"}, {"large-result-eviction", "preserve-sample-chars: -1"},
		{"large-result-eviction", "eviction-store: tape"},
		{"large-result-eviction", "{eviction-store: dir, eviction-dir: ''}"},
		{"rate-limit", "enabled: true"}, {"rate-limit", "tools: {x: {limit: 0}}"}, {"rate-limit", "tools: {'[': {limit: 1}}"},
		{"concurrency", "enabled: true"}, {"concurrency", "groups: {a: 0}"}, {"concurrency", "wait: -1s"},
	} {
		_, _, err := harnessMake(messages.Tool, row.stage, row.config, d)
		require.Error(t, err, "%s %s", row.stage, row.config)
	}
	for _, rules := range []stages.FallbackRules{{StaleTTL: -1}, {StaleMax: -1}, {GracefulIsError: "maybe"},
		{Rungs: []string{"luck"}}} {
		d.Fallback = &rules
		_, _, err := harnessMake(messages.Tool, "tool-fallback", "", d)
		require.ErrorContains(t, err, "tool.fallback")
	}
	for _, name := range []string{"rate-limit", "concurrency"} {
		_, on, err := harnessMake(messages.Tool, name, "", harnessWith(d))
		require.NoError(t, err)
		require.False(t, on, "on when set")
	}
}

func harnessWith(d stages.Deps) stages.Deps { d.Fallback = nil; return d }

func BenchmarkToolChain(b *testing.B) {
	run := func(b *testing.B, fresh bool) {
		c := newToolChain(b, stages.Deps{}, nil, gives(reading("x"), `{"ok":true}`))
		local := pipeline.Chain(c.Stages, c.Target)
		for b.Loop() {
			call := toolCall("x", `{"b":1,"a":{"z":1,"y":[1,2,3]}}`)
			if fresh {
				call.Cache = "refresh"
			}
			if out, err := local.Call(b.Context(), call); err != nil || out.Fault != nil {
				b.Fatal(err, out.Fault)
			}
		}
	}
	b.Run("hit", func(b *testing.B) { run(b, false) })
	b.Run("miss", func(b *testing.B) { run(b, true) })
}
