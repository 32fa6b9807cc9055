package stages

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// ToolRetryConfig is agent.interceptor.tool-retry: what holds for tools that declare no policy of their own.
type ToolRetryConfig struct {
	Common     `yaml:",inline"`
	MaxRetries int           `yaml:"max-retries" doc:"Tries beyond the first, for tools without a policy of their own."`
	BaseDelay  time.Duration `yaml:"base-delay" doc:"First delay."`
	Multiplier float64       `yaml:"multiplier" doc:"Growth of the delay."`
	MaxDelay   time.Duration `yaml:"max-delay" doc:"Longest delay, also of the policies of tools."`
	Jitter     float64       `yaml:"jitter" doc:"Share by which a delay is spread to either side, 0 to 1."`
	ExecutedBy string        `yaml:"executed-by" doc:"pipeline, or caller: the stage only marks; its caller tries again."`
	Tools      []string      `yaml:"tools" doc:"Tools that are retried; empty: all."`
}

const (
	retryByPipeline = "pipeline"
	retryByCaller   = "caller"
)

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ToolRetryConfig) Validate() error {
	var f faults
	f.when(c.MaxRetries < 0 || c.MaxRetries >= pipeline.MaxAttempts,
		"max-retries: %d; need 0 to %d", c.MaxRetries, pipeline.MaxAttempts-1)
	f.when(c.BaseDelay < 0, "base-delay: %s; need 0 or more", c.BaseDelay)
	f.when(!(c.Multiplier >= 1 && c.Multiplier <= 100), "multiplier: %v; need 1 to 100", c.Multiplier)
	f.when(c.MaxDelay < c.BaseDelay || c.MaxDelay == 0,
		"max-delay: %s; need more than 0 and at least base-delay, %s", c.MaxDelay, c.BaseDelay)
	f.when(!(c.Jitter >= 0 && c.Jitter <= 1), "jitter: %v; need 0 to 1", c.Jitter)
	f.when(c.ExecutedBy != retryByPipeline && c.ExecutedBy != retryByCaller,
		"executed-by: %q; known: pipeline, caller", c.ExecutedBy)
	return f.join()
}

type toolRetry struct {
	cfg       ToolRetryConfig
	tools     toolPolicies
	deps      Deps
	retries   atomic.Int64
	exhausted atomic.Int64
}

// toolRetryState is the policy as it was when the call came: it holds over all attempts.
type toolRetryState struct {
	Policy    tool.RetryPolicy `json:"policy"`
	Own       bool             `json:"own,omitempty"`       // the tool's, not the stage's
	Unguarded bool             `json:"unguarded,omitempty"` // may run twice
}

func defaultToolRetry() ToolRetryConfig {
	return ToolRetryConfig{
		MaxRetries: 2, BaseDelay: 500 * time.Millisecond, Multiplier: 2, MaxDelay: 30 * time.Second,
		ExecutedBy: retryByPipeline,
	}
}

// newToolRetry makes the stage that lets a failed tool run again. What fails is the tool itself: its faults and its
// error results, never a stage, a held call, a cancelled one, bad arguments or an unknown outcome. The tool's own
// policy decides, else the stage's keys; a tool that may not run twice is only tried again on proof that it did not
// run. The first wait is base-delay for the stage's policy and one step further, NextDelay(1), for a tool's own; a
// Retry-After of the fault is the least. A wait that would pass the deadline, or a Retry-After beyond max-delay, ends
// the attempts at once.
//
// It notes retry.shouldRetry and retry.suggestedDelayMs. After several failed attempts the fault becomes
// retries_exhausted, "All N attempts failed", around the last one; an error result stays as it is. A policy that cannot
// be found, or whose look-up panics, means no retry, and the call goes on. It fails open: its store is only a record.
func newToolRetry(cfg *ToolRetryConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	r := &toolRetry{cfg: *cfg, tools: tools, deps: d}
	return pipeline.Stage{
		Role: pipeline.RoleRetry, Before: r.before, After: r.after, Keep: true, Reads: []string{"fault"},
		Details: func(context.Context) map[string]any {
			return map[string]any{
				"maxRetries": cfg.MaxRetries, "baseDelayMs": cfg.BaseDelay.Milliseconds(),
				"totalRetries": r.retries.Load(), "retriesExhausted": r.exhausted.Load(),
			}
		},
	}, nil
}

func (r *toolRetry) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	st, err := r.policy(ctx, c)
	if err != nil {
		r.deps.Log.WarnContext(ctx, "retry policy not found; the tool is tried once",
			"call", c.ID, "tool", c.Tool, "err", err)
		st = toolRetryState{Policy: tool.NoRetry()}
	}
	c.Note(messages.NoteMaxRetries, st.Policy.MaxAttempts-1)
	return pipeline.Continue(), c.SetState(st)
}

func (r *toolRetry) policy(ctx context.Context, c *messages.Call) (st toolRetryState, err error) {
	def, e, err := r.tools.of(ctx, c)
	if err != nil {
		return st, err
	}
	st = toolRetryState{Policy: r.own(), Unguarded: e.Unguarded}
	if e.Retry != nil {
		st.Policy, st.Own = *e.Retry, true
	}
	if len(r.cfg.Tools) > 0 && !slices.Contains(r.cfg.Tools, def.Name) {
		st.Policy = tool.NoRetry()
	}
	st.Policy.MaxAttempts = max(1, st.Policy.MaxAttempts)
	return st, nil
}

// own is the policy of the stage's keys: any fault of the tool is worth another attempt.
func (r *toolRetry) own() tool.RetryPolicy {
	return tool.RetryPolicy{
		MaxAttempts: r.cfg.MaxRetries + 1, BaseDelay: tool.Duration(r.cfg.BaseDelay), Multiplier: r.cfg.Multiplier,
		MaxDelay: tool.Duration(r.cfg.MaxDelay), Jitter: r.cfg.Jitter, On: []string{tool.AnyFault},
	}
}

func (r *toolRetry) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st toolRetryState
	if ok, err := c.State(&st); err != nil || !ok {
		return r.end(c), err
	}
	f := c.Fault
	if f == nil && c.Flag(messages.NoteIsError) {
		f = messages.NewFault(messages.ToolError, "the tool gave an error result").From(messages.TargetOrigin)
	}
	// Once a part of the answer is out, another attempt could only repeat it or contradict it.
	if f == nil || !failedTarget(c) || ctx.Err() != nil || c.Flag(messages.NoteStreamShown) {
		return r.end(c), nil
	}
	attempt := c.Attempt()
	// Asked as if no attempt had been made: whether the fault is worth one at all. How many there are comes after.
	if !(tool.Effective{Unguarded: st.Unguarded}).MayRetry(endless(st.Policy), 0, f) {
		if attempt > 1 {
			r.exhaust(c, f, attempt)
		}
		return r.end(c), nil
	}
	delay, ok := r.delay(c, st, f, attempt)
	if attempt >= st.Policy.MaxAttempts || !ok {
		if attempt > 1 {
			r.exhausted.Add(1)
			r.exhaust(c, f, attempt)
		}
		return r.end(c), nil
	}
	if r.cfg.ExecutedBy == retryByCaller {
		markRetry(c, delay)
		forget(c)
		return pipeline.Continue(), nil
	}
	delay, created := decideRetry(ctx, r.deps, c, retryRecord{Max: st.Policy.MaxAttempts, Last: f.Code}, delay)
	if created {
		r.retries.Add(1)
		r.deps.Log.InfoContext(ctx, "tool failed and is tried again", "call", c.ID, "tool", c.Tool,
			"attempt", fmt.Sprintf("%d/%d", attempt+1, st.Policy.MaxAttempts), "delay", delay, "code", f.Code)
	}
	markRetry(c, delay)
	clearAttempt(c)
	for _, note := range []string{messages.NoteIsError, messages.NoteStructured, messages.NoteMetadata} {
		c.Unnote(note)
	}
	return pipeline.Again(delay), nil
}

// endless is the policy without its number of attempts.
func endless(p tool.RetryPolicy) tool.RetryPolicy {
	if p.MaxAttempts > 1 {
		p.MaxAttempts = pipeline.MaxAttempts
	}
	return p
}

// delay is the wait before the next attempt; ok is false if there is no point in waiting.
func (r *toolRetry) delay(
	c *messages.Call, st toolRetryState, f *messages.Fault, attempt int,
) (d time.Duration, ok bool) {
	n := attempt - 1
	if st.Own {
		n = attempt
	}
	d = min(r.cfg.MaxDelay, jittered(st.Policy.NextDelay(n), st.Policy.Jitter, c))
	if f.RetryAfter > r.cfg.MaxDelay {
		return 0, false
	}
	d = max(d, f.RetryAfter)
	return d, !c.Past(time.Now().Add(d))
}

// exhaust says that every attempt failed. An error result has words of its own and keeps them, and so does a fault that
// is more than a failure: an unknown outcome must be read as one.
func (r *toolRetry) exhaust(c *messages.Call, last *messages.Fault, attempts int) {
	if c.Fault == nil || tool.ErrorClassOf(last) == "" {
		return
	}
	g := *last
	g.Code, g.Last = messages.RetriesExhausted, last.Code
	g.Message = fmt.Sprintf("All %d attempts failed: %s", attempts, last.Message)
	c.Fail(&g)
}

// end notes that no attempt follows.
func (r *toolRetry) end(c *messages.Call) pipeline.Verdict {
	unmarkRetry(c)
	forget(c)
	return pipeline.Continue()
}
