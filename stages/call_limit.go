package stages

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// CallLimitConfig is agent.interceptor.call-limit. A limit that is null does not hold; 0 allows no call.
type CallLimitConfig struct {
	Common       `yaml:",inline"`
	RunLimit     *int64 `yaml:"run-limit" doc:"Model calls of one run; null: no limit."`
	ThreadLimit  *int64 `yaml:"thread-limit" doc:"Model calls of one session; null: no limit."`
	ExitBehavior string `yaml:"exit-behavior" doc:"At the limit END answers with a text; ERROR fails with limit_exceeded."`
}

// How a call over the limit ends: with a text as its reply, which ends a run too, or with the fault limit_exceeded.
const (
	exitEnd   = "END"
	exitError = "ERROR"
)

func (c *CallLimitConfig) limited() bool { return c.RunLimit != nil || c.ThreadLimit != nil }

// Validate returns what is wrong, joined, each error with its key in front.
func (c *CallLimitConfig) Validate() error {
	var f faults
	f.when(c.ExitBehavior != exitEnd && c.ExitBehavior != exitError,
		"exit-behavior: %q; known: END, ERROR", c.ExitBehavior)
	f.when(c.RunLimit != nil && *c.RunLimit < 0, "run-limit: need 0 or more, or null for none")
	f.when(c.ThreadLimit != nil && *c.ThreadLimit < 0, "thread-limit: need 0 or more, or null for none")
	f.when(c.Enabled != nil && *c.Enabled && !c.limited(),
		"enabled, but neither run-limit nor thread-limit is set; set one or take enabled out")
	return f.join()
}

func callLimitOn(config any) bool {
	c, ok := config.(*CallLimitConfig)
	return ok && c.limited()
}

const (
	runCountTTL    = 7 * 24 * time.Hour  // since the run's last call
	threadCountTTL = 30 * 24 * time.Hour // since the session's last call
)

type callLimit struct {
	cfg   CallLimitConfig
	store func(string) pipeline.Store
}

func defaultCallLimit() CallLimitConfig {
	return CallLimitConfig{ExitBehavior: exitEnd}
}

// newCallLimit makes the stage that limits the model calls of a run and of a session. A call is counted once, after it,
// whatever was retried further in and however often it is delivered; until then it holds a reservation, so that
// parallel calls cannot pass the limit together. A call that never reached its model and got no reply is not counted; a
// cache hit is (a loop on a cached answer is still a loop). A call without a session has no thread limit; each run
// counts from 0, and a call without a run is a run of its own; a call that a stage makes for a counted call is part of
// that one. It fails closed.
func newCallLimit(cfg *CallLimitConfig, d Deps) (pipeline.Stage, error) {
	l := &callLimit{cfg: *cfg, store: d.Store}
	return pipeline.Stage{
		Before: l.before, After: l.after, FailClosed: true, Jumps: []string{"end"},
		Reads: []string{"run", "session", "request.model"}, Writes: []string{"reply", "limits.calls"},
	}, nil
}

// callCounter is one limit as it applies to a call. Its ledger has no key for a call that is a run of its own.
type callCounter struct {
	quota.Ledger
	name  string
	limit int64
}

func (l *callLimit) counters(c *messages.Call) []callCounter {
	var out []callCounter
	add := func(name, of string, limit int64, ttl time.Duration) {
		n := callCounter{quota.Ledger{Store: l.store("limits"), TTL: ttl}, name, limit}
		if of != "" {
			n.Key = messages.Key("call-limit", name, c.Tenant, of)
		}
		out = append(out, n)
	}
	if l.cfg.ThreadLimit != nil && c.Session != "" {
		add("thread", c.Session, *l.cfg.ThreadLimit, threadCountTTL)
	}
	if l.cfg.RunLimit != nil {
		add("run", c.Run, *l.cfg.RunLimit, runCountTTL)
	}
	return out
}

func (l *callLimit) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var exceeded []string
	var reserved []callCounter
	for _, n := range l.counters(c) {
		count, ok := quota.Amount{}, n.limit > 0
		if n.Key != "" {
			var err error
			count, ok, err = n.Reserve(ctx, c, quota.Amount{Calls: 1}, true,
				func(taken quota.Amount) bool { return taken.Calls >= n.limit })
			if err != nil {
				return pipeline.Verdict{}, quota.StoreFault("call-limit", "call counters", err)
			}
			reserved = append(reserved, n)
		}
		if !ok {
			exceeded = append(exceeded, fmt.Sprintf("%s limit (%d/%d)", n.name, count.Calls, n.limit))
		}
	}
	if len(exceeded) == 0 {
		return pipeline.Continue(), nil
	}
	for _, n := range reserved {
		if err := n.Release(ctx, c); err != nil {
			return pipeline.Verdict{}, quota.StoreFault("call-limit", "call counters", err)
		}
	}
	text := "Model call limits exceeded: " + strings.Join(exceeded, ", ")
	if l.cfg.ExitBehavior == exitError {
		return pipeline.Verdict{}, messages.NewFault(messages.LimitExceeded, "%s", text).From("call-limit")
	}
	c.SetReply(view.Of(c.Wire).TextReply(c.ID, view.ModelName(c.Request()), text, c.Accepted.Unix()))
	c.Note(messages.NoteJumpTo, "end") // a text alone would not end the run
	return pipeline.Jump("end"), nil
}

func (l *callLimit) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	called := c.Fault == nil || c.Flag(messages.NoteExecutorReached)
	for _, n := range l.counters(c) {
		if n.Key == "" {
			continue
		}
		var err error
		if called {
			err = n.Book(ctx, c, quota.Amount{Calls: 1})
		} else {
			err = n.Release(ctx, c)
		}
		if err != nil {
			return pipeline.Continue(), quota.StoreFault("call-limit", "call counters", err)
		}
	}
	return pipeline.Continue(), nil
}
