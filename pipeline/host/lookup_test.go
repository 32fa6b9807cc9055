package host_test

import (
	"context"
	"errors"
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

// trap is a resolver that goes wrong for a tool while it is armed.
type trap struct {
	tool.Tools
	mu    sync.Mutex
	armed map[string]bool
	hits  map[string]int
}

var errLookUp = errors.New("the policy service is away")

func (r *trap) Get(ctx context.Context, name string) (*tool.Definition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	base, _, _ := cutAt(name)
	if r.armed[base] {
		r.hits[base]++
		if base == "panics" {
			panic("no policy")
		}
		return nil, errLookUp
	}
	return r.Tools.Get(ctx, name)
}

func cutAt(name string) (base, version string, pinned bool) {
	for i := range name {
		if name[i] == '@' {
			return name[:i], name[i+1:], true
		}
	}
	return name, "", false
}

// arm is a tool stage that arms or disarms the trap for the tool of the call.
func (r *trap) arm(name string, order int, armed bool) pipeline.Stage {
	f := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.armed[c.Tool] = armed && c.Tool != "well"
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{Name: name, Kind: messages.Tool, Order: order, Before: f}
}

// RP-9 on the bus: the look-up of the retry policy panics or gives an error. The tool is tried once, the call is not
// lost, and what the tool said reaches the caller. The same trap round the cache: it is a miss.
func TestRowsLookUp(t *testing.T) {
	t.Parallel()
	for where, orders := range map[string][2]int{"tool-retry": {29, 31}, "tool-cache": {19, 21}} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			r := &trap{armed: map[string]bool{}, hits: map[string]int{}}
			var mu sync.Mutex
			runs := map[string]int{}
			h := apitest.Host(t, "agent: {interceptor: {tool-retry: {base-delay: 1ms}, "+
				"large-result-eviction: {enabled: false}}}\n"+
				"tool:\n  tools:\n"+
				"    - {name: panics, executor: \"go:fail\", effect: read}\n"+
				"    - {name: errs, executor: \"go:fail\", effect: read}\n"+
				"    - {name: well, executor: \"go:fail\", effect: read}\n", func(o *host.Options) {
				o.Stages = []pipeline.Stage{r.arm("arm", orders[0], true), r.arm("disarm", orders[1], false)}
				o.Resolve = func(registry tool.Tools) tool.Tools { r.Tools = registry; return r }
				o.Funcs = toolbox.GoFuncs{"fail": toolbox.ExecutorFunc(func(_ context.Context, inv toolbox.Invocation) (
					toolbox.Result, error) {
					mu.Lock()
					defer mu.Unlock()
					runs[inv.Tool.Name]++
					return toolbox.Result{}, errors.New("the tool's own words")
				})}
			})
			for _, tool := range []string{"panics", "errs", "well"} {
				c := end(t, h, pipeline.Request{Kind: messages.Tool, Tool: tool, Body: []byte(`{}`)})
				require.Nil(t, c.Fault, "RP-9 %s: the ladder has the last word", tool)
				require.Contains(t, string(c.Notes["tool.fallbackFault"]), "the tool's own words", "RP-9 %s", tool)
				want := 3
				if where == "tool-retry" && tool != "well" {
					want = 1
					require.NotZero(t, r.hits[tool], "the trap was stepped on")
					require.NotContains(t, string(c.Notes["tool.fallbackFault"]), "attempts failed")
				}
				mu.Lock()
				require.Equal(t, want, runs[tool], "RP-9 %s", tool)
				mu.Unlock()
			}
		})
	}
}
