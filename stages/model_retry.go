package stages

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// ModelRetryConfig is agent.interceptor.model-retry.
type ModelRetryConfig struct {
	Common     `yaml:",inline"`
	MaxRetries int           `yaml:"max-retries" doc:"Tries beyond the first."`
	BaseDelay  time.Duration `yaml:"base-delay" doc:"First delay; it doubles."`
	MaxDelay   time.Duration `yaml:"max-delay" doc:"Longest delay."`
	Jitter     float64       `yaml:"jitter" doc:"Share by which a delay is spread to either side, 0 to 1."`
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ModelRetryConfig) Validate() error {
	var f faults
	f.when(c.MaxRetries < 0 || c.MaxRetries >= pipeline.MaxAttempts,
		"max-retries: %d; need 0 to %d", c.MaxRetries, pipeline.MaxAttempts-1)
	f.when(c.BaseDelay < 0, "base-delay: %s; need 0 or more", c.BaseDelay)
	f.when(c.MaxDelay < c.BaseDelay, "max-delay: %s; need at least base-delay, %s", c.MaxDelay, c.BaseDelay)
	f.when(!(c.Jitter >= 0 && c.Jitter <= 1), "jitter: %v; need 0 to 1", c.Jitter)
	return f.join()
}

type modelRetry struct {
	cfg       ModelRetryConfig
	deps      Deps
	retries   atomic.Int64
	exhausted atomic.Int64
}

func defaultModelRetry() ModelRetryConfig {
	return ModelRetryConfig{MaxRetries: 2, BaseDelay: 500 * time.Millisecond, MaxDelay: 30 * time.Second, Jitter: 0.25}
}

// newModelRetry makes the stage that sends a call to its model again after a passing fault of the target. The code of
// the fault decides, never words in a text: a permanent fault is not tried again, nor one after which a part of the
// answer is out (stream_cut is not retryable), nor a model that was silent. A provider's Retry-After is kept to; if it
// asks for more than max-delay, or if the wait would end after the call's deadline, the fault goes out at once. The
// last fault goes out as it came, so a fallback further out sees one fault for each model. It fails open: its store is
// only a record.
func newModelRetry(cfg *ModelRetryConfig, d Deps) (pipeline.Stage, error) {
	r := &modelRetry{cfg: *cfg, deps: d}
	return pipeline.Stage{
		Role: pipeline.RoleRetry, After: r.after, Keep: true,
		Reads: []string{"fault", "request.model"}, Writes: []string{"retry.model"},
		Details: func(context.Context) map[string]any {
			return map[string]any{"totalRetries": r.retries.Load(), "retriesExhausted": r.exhausted.Load()}
		},
	}, nil
}

func (r *modelRetry) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	f := c.Fault
	if f == nil {
		if _, noted := c.Notes[messages.NoteShouldRetry]; noted {
			unmarkRetry(c)
		}
		forget(c)
		return pipeline.Continue(), nil
	}
	if !f.Retryable() || !failedTarget(c) || ctx.Err() != nil {
		return r.end(c), nil
	}
	known := learnRoutes(c, r.deps)
	delay, ok := r.delay(c)
	ok = ok && known.open(r.deps, chat.ModelName(c.Request())) && !c.Slip.Spent()
	if n := c.Attempt(); n > r.cfg.MaxRetries || !ok {
		if n > r.cfg.MaxRetries {
			r.exhausted.Add(1)
		}
		return r.end(c), nil
	}
	delay, created := decideRetry(ctx, r.deps, c, retryRecord{Max: r.cfg.MaxRetries + 1, Last: f.Code}, delay)
	if created {
		r.retries.Add(1)
	}
	markRetry(c, delay)
	clearAttempt(c)
	return pipeline.Again(delay), nil
}

// delay is the wait before the next attempt; ok is false if there is no point in waiting.
func (r *modelRetry) delay(c *messages.Call) (d time.Duration, ok bool) {
	d = min(r.cfg.MaxDelay, jittered(backoff(r.cfg.BaseDelay, 2, c.Attempt()-1, r.cfg.MaxDelay), r.cfg.Jitter, c))
	if asked := c.Fault.RetryAfter; asked > 0 {
		if asked > r.cfg.MaxDelay {
			return 0, false
		}
		d = asked
	}
	return d, !c.Past(time.Now().Add(d))
}

// end lets the fault go out.
func (r *modelRetry) end(c *messages.Call) pipeline.Verdict {
	unmarkRetry(c)
	forget(c)
	return pipeline.Continue()
}
