package host

import (
	"context"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// fallbackRules are `tool.fallback` for the stage. No time or no room for old results means that none stands in.
func fallbackRules(c *config.ToolFallback) *stages.FallbackRules {
	r := stages.FallbackRules{StaleTTL: c.StaleTTL, StaleMax: c.StaleMax, GracefulIsError: string(c.GracefulIsError)}
	if c.StaleTTL == 0 || c.StaleMax == 0 {
		r.Rungs = []string{tool.StubDataMark, tool.GracefulError}
	}
	return &r
}

// evictedDir is where results are evicted to, if that is a directory.
func evictedDir(sections map[string]any) string {
	c, ok := sections["large-result-eviction"].(*stages.LargeResultEvictionConfig)
	if !ok || c.EvictionStore != "dir" {
		return ""
	}
	return c.EvictionDir
}

// readEvicted runs the tool that reads an evicted result by parts.
func readEvicted(r evicted.Reader) toolbox.ExecutorFunc {
	return func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		at := gjson.GetManyBytes(inv.Arguments, "path", "offset", "limit")
		p, err := evicted.Read(ctx, r, inv.Tenant, at[0].String(), int(at[1].Int()), int(at[2].Int()))
		if err != nil {
			return toolbox.Result{}, err
		}
		return toolbox.Result{Content: rawjson.Encode(p)}, nil
	}
}
