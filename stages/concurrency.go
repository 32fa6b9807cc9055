package stages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// ConcurrencyConfig is agent.interceptor.concurrency.
type ConcurrencyConfig struct {
	Common `yaml:",inline"`
	// Groups is how many calls of each concurrency group run at once, over all processes and tenants. A tool names its
	// group in its definition (concurrency-group).
	Groups map[string]int `yaml:"groups" doc:"Calls at once, by concurrency group."`
	// Wait is how long a call waits for a slot before it is refused; 0 refuses at once.
	Wait time.Duration `yaml:"wait" doc:"How long a call waits for a slot before it is refused."`
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ConcurrencyConfig) Validate() error {
	var f faults
	for name, n := range c.Groups {
		f.when(n < 1 || n > maxSlots, "groups.%s: %d; need 1 to %d", name, n, maxSlots)
	}
	f.when(c.Wait < 0, "wait: %s; need 0 or more", c.Wait)
	f.when(c.Enabled != nil && *c.Enabled && len(c.Groups) == 0,
		"enabled, but there are no groups; set groups.<name>: <number> or take enabled out")
	return f.join()
}

func concurrencyOn(config any) bool {
	c, ok := config.(*ConcurrencyConfig)
	return ok && len(c.Groups) > 0
}

const (
	maxSlots = 10000
	// slotGrace is how long a slot outlives the call's deadline, for clocks that differ.
	slotGrace = 10 * time.Second
)

// slotTable is one group's slots: who has one, until when at the latest.
type slotTable struct {
	Held map[string]time.Time `json:"held,omitempty"`
}

// slotState says which slot the after gives back.
type slotState struct {
	Group string `json:"group"`
	Slot  string `json:"slot"`
}

type concurrency struct {
	cfg     ConcurrencyConfig
	tools   toolPolicies
	store   func(string) pipeline.Store
	waiting chan struct{}
}

func defaultConcurrency() ConcurrencyConfig {
	return ConcurrencyConfig{Wait: 5 * time.Second}
}

// newConcurrency makes the stage that bounds how many calls of a group of tools run at once. It stands inner to retry,
// so no slot is held during a back-off. A slot ends by itself a little after the call's deadline, so what a dead
// process held comes back then at the latest, or earlier when its call goes on elsewhere. When none is free a call
// waits for a bounded time, then it is refused as overloaded with Retry-After; its tool did not run. A redelivery keeps
// its slot. The before fails closed, as any before does; the after does not.
func newConcurrency(cfg *ConcurrencyConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	s := &concurrency{cfg: *cfg, tools: tools, store: d.Store, waiting: make(chan struct{}, maxWaiting)}
	return pipeline.Stage{Before: s.before, After: s.after, Finally: true, Blind: true, Reads: []string{"tool"}}, nil
}

func (s *concurrency) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	def, e, err := s.tools.of(ctx, c)
	if err != nil {
		return pipeline.Verdict{}, err
	}
	most, ok := s.cfg.Groups[def.ConcurrencyGroup]
	if !ok || def.ConcurrencyGroup == "" {
		return pipeline.Continue(), nil
	}
	st := slotState{Group: def.ConcurrencyGroup, Slot: c.ID + "/" + try(c)}
	// A call may wait in line for its target before its time limit begins: the slot lasts as long as the call may.
	lease := e.Timeout
	if !c.Deadline.IsZero() {
		lease = max(lease, time.Until(c.Deadline))
	}
	lease += slotGrace
	free, err := s.take(ctx, st, most, lease)
	if err == nil && !free && s.cfg.Wait > 0 {
		select {
		case s.waiting <- struct{}{}:
			poll(ctx, s.cfg.Wait, func(ctx context.Context) bool {
				free, err = s.take(ctx, st, most, lease)
				return free || err != nil
			})
			<-s.waiting
		default: // enough calls wait here already
		}
	}
	switch {
	case ctx.Err() != nil && !free:
		return pipeline.Verdict{}, context.Cause(ctx)
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return pipeline.Verdict{}, quota.StoreFault("concurrency", "slots of group "+st.Group, err)
	case !free:
		f := messages.NewFault(messages.Overloaded,
			"all %d slots of the concurrency group %s are taken; the tool '%s' was not run; try again later",
			most, st.Group, def.Name).From("concurrency")
		f.RetryAfter, f.Unsent = time.Second, true
		return pipeline.Verdict{}, f
	}
	return pipeline.Continue(), c.SetState(st)
}

// take takes a slot if one is free; one that the attempt has already is renewed.
func (s *concurrency) take(ctx context.Context, st slotState, most int, lease time.Duration) (free bool, err error) {
	ttl := lease + time.Minute
	_, err = pipeline.Change(ctx, s.store("limits"), slotKey(st.Group), ttl, func(t *slotTable) (bool, error) {
		now := time.Now().UTC()
		for slot, until := range t.Held {
			if !now.Before(until) {
				delete(t.Held, slot)
			}
		}
		_, has := t.Held[st.Slot]
		if free = has || len(t.Held) < most; !free {
			return false, nil
		}
		if t.Held == nil {
			t.Held = map[string]time.Time{}
		}
		t.Held[st.Slot] = now.Add(lease)
		return true, nil
	})
	return free && err == nil, err
}

func slotKey(group string) string { return messages.Key("concurrency", group) }

// after gives the slot back. If that fails it comes back by itself, so the call's outcome stands.
func (s *concurrency) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st slotState
	if ok, err := c.State(&st); err != nil || !ok {
		return pipeline.Continue(), err
	}
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	_, err := pipeline.Change(ctx, s.store("limits"), slotKey(st.Group), time.Hour, func(t *slotTable) (bool, error) {
		_, has := t.Held[st.Slot]
		delete(t.Held, st.Slot)
		return has, nil
	})
	if err != nil {
		return pipeline.Continue(), fmt.Errorf("concurrency: slot of group %s not given back, it ends by itself: %w",
			st.Group, err)
	}
	return pipeline.Continue(), nil
}
