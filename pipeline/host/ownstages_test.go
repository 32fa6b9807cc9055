package host_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// S2-CHAIN-4, S2-DEF-1: a tool's own stages are on the route of its calls alone, the mandatory ones outer to whatever
// may answer, the optional ones next to the tool.
func TestOwnStages(t *testing.T) {
	t.Parallel()
	var gate, tap atomic.Int64
	count := func(n *atomic.Int64) pipeline.Func {
		return func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			n.Add(1)
			return pipeline.Continue(), nil
		}
	}
	own := []pipeline.Stage{
		{Name: "gate", Alias: "GateInterceptor", Kind: messages.Tool, Order: 60, Before: count(&gate)},
		{Name: "tap", Kind: messages.Tool, Order: 60, Before: count(&tap), After: pass},
	}
	h, err := ownHost(t, own, `
    - {name: guarded, executor: "go:echo", effect: read, cache: on, stages: {mandatory: [GateInterceptor, audit],
        optional: [tap, rate-limit]}}
    - {name: plain, executor: "go:echo", effect: read}
    - {name: guarded, version: "2", executor: "go:echo", effect: read}
    - {name: gated, executor: "go:echo", effect: read, cache: on, stages: {mandatory: [gate]}}
`)
	require.NoError(t, err)
	place := func(c *messages.Call, name string) int {
		for _, s := range c.Slip.Stops {
			if s.Name == name {
				return s.Order
			}
		}
		return -1
	}
	c := end(t, h, pipeline.Request{Kind: messages.Tool, Tool: "guarded@1", Body: []byte(`{}`)})
	require.Nil(t, c.Fault)
	require.Equal(t, []int{0, 1, 51, 52}, []int{place(c, "audit"), place(c, "gate"), place(c, "tap"),
		place(c, "rate-limit")}, "%v", c.Slip.Path)
	path := strings.Join(c.Slip.Path, ",")
	require.Less(t, strings.Index(path, "gate.beforeTool"), strings.Index(path, "tool-arguments.beforeTool"))
	require.Greater(t, strings.Index(path, "tap.beforeTool"), strings.Index(path, "timeout.beforeTool"))
	require.EqualValues(t, 1, tap.Load())

	for _, other := range []string{"plain", "guarded"} {
		c = end(t, h, pipeline.Request{Kind: messages.Tool, Tool: other, Body: []byte(`{}`)})
		require.Equal(t, []int{-1, -1, -1}, []int{place(c, "gate"), place(c, "tap"), place(c, "rate-limit")},
			"%s: %v", other, c.Slip.Path)
	}
	was := gate.Load()
	for range 2 { // the second is a cache hit: the mandatory stage has seen it all the same
		require.Nil(t, end(t, h, pipeline.Request{Kind: messages.Tool, Tool: "gated", Body: []byte(`{"m":1}`)}).Fault)
	}
	require.EqualValues(t, was+2, gate.Load())
	c = end(t, h, pipeline.Request{Kind: messages.Tool, Tool: "guarded@1", Body: []byte(`{"m":2}`),
		Only: []string{"timeout"}})
	require.Equal(t, []int{1, -1}, []int{place(c, "gate"), place(c, "tap")}, "only leaves mandatory stages")

	_, err = h.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"a","executor":"go:echo","stages":{"optional":["nowhere"]}}`), "me")
	require.ErrorContains(t, err, `no tool stage "nowhere"; known: audit`)
	require.Equal(t, messages.InvalidRequest, messages.AsFault(err, "").Code)
	_, err = h.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"a","executor":"go:echo","stages":{"mandatory":["gate"]}}`), "me")
	require.NoError(t, err)
}

func TestOwnStagesRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ stages, has string }{
		"unknown":          {`{mandatory: [nowhere]}`, `stages.mandatory: there is no tool stage "nowhere"`},
		"twice":            {`{mandatory: [tool-error], optional: [ToolErrorInterceptor]}`, "twice"},
		"wrong order":      {`{optional: [tool-cache]}`, "large-result-eviction (20) is outer to tool-cache (51)"},
		"more than orders": {`{optional: [a, b, c, d, e, f, g, h, i, j]}`, "at most 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ownHost(t, nil, "    - {name: x, executor: \"go:echo\", stages: "+row.stages+"}\n")
			require.ErrorContains(t, err, row.has)
			require.ErrorContains(t, err, "tool.tools[0].stages: tool x: ")
		})
	}
}

func ownHost(t *testing.T, own []pipeline.Stage, tools string) (*host.Host, error) {
	return apitest.TryHost(t, "tool:\n  tools:\n"+tools, func(o *host.Options) { o.ToolStages = own })
}
