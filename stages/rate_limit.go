package stages

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// RateLimitConfig is agent.interceptor.rate-limit.
type RateLimitConfig struct {
	Common `yaml:",inline"`
	// Tools are the limits by tool name, or by a pattern such as "search_*". The tool's own name counts first, then the
	// longest pattern that fits. Each tenant has its own quota of each tool.
	Tools map[string]RateLimit `yaml:"tools" doc:"Limits by name of the tool."`
}

// RateLimit allows Limit attempts in each Per, of which Burst may come at once.
type RateLimit struct {
	Limit int           `yaml:"limit" doc:"Calls in the time." required:"true" min:"1"`
	Per   time.Duration `yaml:"per" doc:"The time."`
	Burst int           `yaml:"burst" doc:"Calls at once; 0: the limit." min:"0"`
}

// SetDefaults fills a new entry before the keys of a file are read into it.
func (r *RateLimit) SetDefaults() { r.Per = time.Minute }

func (r RateLimit) withDefaults() RateLimit {
	if r.Per == 0 {
		r.SetDefaults()
	}
	if r.Burst == 0 {
		r.Burst = r.Limit
	}
	return r
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *RateLimitConfig) Validate() error {
	var f faults
	for name, r := range c.Tools {
		r = r.withDefaults()
		err := messages.CheckGlob(name)
		f.when(err != nil, "tools: %v", err)
		f.when(r.Limit < 1 || r.Per < time.Millisecond || r.Burst < 1 || r.Per/time.Duration(r.Limit) < 1,
			"tools.%s: limit and burst are at least 1, per at least 1ms", name)
	}
	f.when(c.Enabled != nil && *c.Enabled && len(c.Tools) == 0,
		"enabled, but no tool has a limit; set tools.<name>: {limit, per} or take enabled out")
	return f.join()
}

func rateLimitOn(config any) bool {
	c, ok := config.(*RateLimitConfig)
	return ok && len(c.Tools) > 0
}

// limitOf finds the limit of a tool: that of the pattern that fits best, of equals the first by name.
func (c *RateLimitConfig) limitOf(tool string) (r RateLimit, ok bool) {
	best, most := "", -1
	for name := range c.Tools {
		if score := messages.GlobScore(name, tool); score > most || score == most && name < best {
			best, most = name, score
		}
	}
	return c.Tools[best].withDefaults(), most >= 0
}

// bucket is a token bucket as one moment: the time at which it is full again. Taken lists the attempts that have had
// their token lately, so that a redelivery takes none.
type bucket struct {
	Full  time.Time            `json:"full"`
	Taken map[string]time.Time `json:"taken,omitempty"`
}

// clocksDiffer is more than the clocks of two machines do that nobody has set.
const clocksDiffer = time.Minute

// maxTaken bounds the attempts that a bucket remembers.
const maxTaken = 256

// newRateLimit makes the stage that limits how often a tool runs for a tenant. It stands inner to cache and retry: a
// hit uses no quota, each attempt does. A call over the limit gets the fault rate_limited with Retry-After; it is not
// retried here, because the limit is ours: the tool did not fail. It fails closed.
func newRateLimit(cfg *RateLimitConfig, d Deps) (pipeline.Stage, error) {
	before := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		tool, _, _ := cutVersion(c.Tool)
		r, ok := cfg.limitOf(tool)
		if !ok {
			return pipeline.Continue(), nil
		}
		wait, err := takeToken(ctx, d.Store("limits"), messages.Key("rate-limit", c.Tenant, tool), r, c.ID+"/"+try(c))
		if err != nil {
			return pipeline.Verdict{}, quota.StoreFault("rate-limit", "tool quotas", err)
		}
		if wait > 0 {
			f := messages.NewFault(messages.RateLimited, "tool '%s' may run %d times in %s for tenant %s; try again in %s",
				tool, r.Limit, r.Per, c.Tenant, wait.Round(time.Millisecond)).From("rate-limit")
			f.RetryAfter, f.Unsent = wait, true
			return pipeline.Verdict{}, f
		}
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{Before: before, FailClosed: true, Blind: true, Reads: []string{"tool", "tenant"}}, nil
}

// takeToken takes one token for the attempt, or returns how long until there is one.
func takeToken(
	ctx context.Context, s pipeline.Store, key string, r RateLimit, attempt string,
) (wait time.Duration, err error) {
	each := r.Per / time.Duration(r.Limit)
	ttl := time.Duration(r.Burst)*each + 2*time.Minute
	_, err = pipeline.Change(ctx, s, key, ttl, func(b *bucket) (bool, error) {
		now := time.Now().UTC()
		wait = 0
		if _, had := b.Taken[attempt]; had {
			return false, nil
		}
		full := b.Full
		if full.Before(now) {
			full = now
		}
		if most := now.Add(time.Duration(r.Burst) * each); full.After(most.Add(clocksDiffer)) {
			b.Full, wait = most, each // somebody has set a clock back: the bucket is empty, and fills from now on
			return true, nil
		}
		if wait = full.Add(each).Sub(now) - time.Duration(r.Burst)*each; wait > 0 {
			return false, nil
		}
		wait = 0
		b.Full = full.Add(each)
		b.remember(attempt, now)
		return true, nil
	})
	return wait, err
}

func (b *bucket) remember(attempt string, now time.Time) {
	for a, at := range b.Taken {
		if now.Sub(at) > time.Minute {
			delete(b.Taken, a)
		}
	}
	for len(b.Taken) >= maxTaken {
		oldest := ""
		for a, at := range b.Taken {
			if oldest == "" || at.Before(b.Taken[oldest]) {
				oldest = a
			}
		}
		delete(b.Taken, oldest)
	}
	if b.Taken == nil {
		b.Taken = map[string]time.Time{}
	}
	b.Taken[attempt] = now
}
