package stages

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// BudgetConfig is agent.interceptor.budget. Both limits are for one tenant and one UTC day; null does not limit.
type BudgetConfig struct {
	Common       `yaml:",inline"`
	TokensPerDay *int64   `yaml:"tokens-per-day" doc:"Tokens of one tenant in a day (UTC); null: no limit."`
	USDPerDay    *float64 `yaml:"usd-per-day" doc:"Money of one tenant in a day (UTC), by prices; null: no limit."`
	// Prices are needed for usd-per-day, except for replies whose usage names its cost. The line that fits
	// best counts; a model that no line fits costs as the dearest one, so that an unknown name is not free.
	Prices []ModelPrice `yaml:"prices" doc:"Prices by model, for usd-per-day."`
}

// ModelPrice is what a million tokens of a model cost in US dollars. Model may be a pattern such as "gpt-4o*".
type ModelPrice struct {
	Model  string  `yaml:"model" doc:"Model; * stands for any text, also a slash. The line that fits best counts."`
	Input  float64 `yaml:"input" doc:"USD for a million input tokens."`
	Output float64 `yaml:"output" doc:"USD for a million output tokens."`
}

func (c *BudgetConfig) limited() bool { return c.TokensPerDay != nil || c.USDPerDay != nil }

// Validate returns what is wrong, joined, each error with its key in front.
func (c *BudgetConfig) Validate() error {
	var f faults
	f.when(c.TokensPerDay != nil && *c.TokensPerDay < 0, "tokens-per-day: need 0 or more, or null for none")
	f.when(c.USDPerDay != nil && !(*c.USDPerDay >= 0 && *c.USDPerDay < 1e9),
		"usd-per-day: need 0 or more, or null for none")
	f.when(c.USDPerDay != nil && len(c.Prices) == 0,
		"prices: usd-per-day needs at least one line {model, input, output} in US dollars per million tokens")
	f.when(c.Enabled != nil && *c.Enabled && !c.limited(),
		"enabled, but neither tokens-per-day nor usd-per-day is set; set one or take enabled out")
	for i, p := range c.Prices {
		err := messages.CheckGlob(p.Model)
		f.when(err != nil, "prices[%d].model: %v", i, err)
		f.when(!(p.Input >= 0 && p.Input < 1e6 && p.Output >= 0 && p.Output < 1e6),
			"prices[%d]: input and output are 0 or more US dollars per million tokens", i)
	}
	return f.join()
}

func budgetOn(config any) bool {
	c, ok := config.(*BudgetConfig)
	return ok && c.limited()
}

const (
	budgetTTL = 72 * time.Hour
	// bytesPerToken and reservedOutput estimate a call that is under way; its settlement replaces the estimate.
	bytesPerToken  = 4
	reservedOutput = 500
)

type budget struct {
	cfg   BudgetConfig
	store func(string) pipeline.Store
}

// budgetState is the reservation of one call; the day is kept so that a call over midnight is settled where it was
// reserved.
type budgetState struct {
	Day      string       `json:"day"`
	Estimate quota.Amount `json:"estimate"`
}

// newBudget makes the stage that limits what a tenant uses a day. A call is refused when what was used and what calls
// under way have reserved has reached a limit; so the last call may end above it, but calls in parallel cannot add up
// to much more. After the call the reservation is replaced by the reply's usage. A reply that no model made (a cache
// hit, an answer of a stage) costs 0, and so does a fault, except a cut stream, which was paid for: it costs the
// estimate. It fails closed.
func newBudget(cfg *BudgetConfig, d Deps) (pipeline.Stage, error) {
	b := &budget{cfg: *cfg, store: d.Store}
	return pipeline.Stage{
		Before: b.before, After: b.after, FailClosed: true,
		Reads: []string{"tenant", "request", "reply.usage"}, Writes: []string{"limits.budget"},
	}, nil
}

func (b *budget) ledger(tenant, day string) quota.Ledger {
	return quota.Ledger{Store: b.store("limits"), Key: messages.Key("budget", tenant, day), TTL: budgetTTL}
}

func (b *budget) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if !b.cfg.limited() {
		return pipeline.Continue(), nil
	}
	st := budgetState{Day: time.Now().UTC().Format(time.DateOnly), Estimate: b.estimate(c.Wire, c.Request())}
	used, ok, err := b.ledger(c.Tenant, st.Day).Reserve(ctx, c, st.Estimate, false,
		func(taken quota.Amount) bool { return b.over(taken) != "" })
	if err != nil {
		return pipeline.Verdict{}, quota.StoreFault("budget", "day's usage", err)
	}
	if !ok {
		return pipeline.Verdict{}, messages.NewFault(messages.LimitExceeded,
			"The budget of tenant %s for %s (UTC) is used up: %s, calls under way included. It begins anew at 00:00 UTC; "+
				"an operator can raise agent.interceptor.budget.",
			c.Tenant, st.Day, b.over(used)).From("budget")
	}
	return pipeline.Continue(), c.SetState(st)
}

// over says which limit is reached, or nothing.
func (b *budget) over(a quota.Amount) string {
	switch {
	case b.cfg.TokensPerDay != nil && a.Tokens >= *b.cfg.TokensPerDay:
		return fmt.Sprintf("%d of %d tokens", a.Tokens, *b.cfg.TokensPerDay)
	case b.cfg.USDPerDay != nil && a.Micros >= micros(*b.cfg.USDPerDay):
		return fmt.Sprintf("%.4f of %.4f US dollars", float64(a.Micros)/1e6, *b.cfg.USDPerDay)
	}
	return ""
}

func (b *budget) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st budgetState
	if ok, err := c.State(&st); err != nil || !ok {
		return pipeline.Continue(), err
	}
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	if err := b.ledger(c.Tenant, st.Day).Book(ctx, c, b.cost(c, st.Estimate)); err != nil {
		return pipeline.Continue(), quota.StoreFault("budget", "day's usage", err)
	}
	return pipeline.Continue(), nil
}

// cost is what the call used in the end.
func (b *budget) cost(c *messages.Call, estimate quota.Amount) quota.Amount {
	if c.Fault != nil {
		if c.Fault.Code == messages.StreamCut {
			return estimate
		}
		return quota.Amount{}
	}
	if _, byStage := c.Notes[messages.NoteStopper]; byStage {
		return quota.Amount{}
	}
	told := view.Of(c.Wire).Usage(c.Reply())
	in, out := told.Input, told.Output
	total := max(told.Total, in+out)
	if total == 0 { // a provider that reports nothing is not free
		in, out = int64(len(c.Request())/bytesPerToken), int64(len(c.Reply())/bytesPerToken)
		total = in + out
	}
	spent := quota.Amount{Calls: 1, Tokens: total, Micros: b.price(view.ModelName(c.Request()), in, total-in)}
	usage, _ := rawjson.Field(c.Reply(), "usage")
	if cost, ok := rawjson.Field(usage, "cost"); ok {
		if usd, ok := number(cost); ok && usd >= 0 {
			spent.Micros = micros(usd)
		}
	}
	return spent
}

// Money is what a call has cost, in millionths of a US dollar, by the prices of the configuration or as its reply says.
// A nil configuration knows no prices.
func Money(cfg *BudgetConfig, c *messages.Call) int64 {
	if cfg == nil {
		cfg = &BudgetConfig{}
	}
	return (&budget{cfg: *cfg}).cost(c, quota.Amount{}).Micros
}

func (b *budget) estimate(w messages.Wire, request []byte) quota.Amount {
	in := int64(len(request) / bytesPerToken)
	out := int64(reservedOutput)
	if n := view.Of(w).OutputLimit(request); n > 0 {
		out = min(n, 1<<20)
	}
	raw, _ := rawjson.Field(request, "n")
	if n, ok := rawjson.Int(raw); ok && n > 1 {
		out *= min(n, 1<<10)
	}
	return quota.Amount{Calls: 1, Tokens: in + out, Micros: b.price(view.ModelName(request), in, out)}
}

func (b *budget) price(model string, in, out int64) int64 {
	cost := func(p ModelPrice) float64 { return float64(in)*p.Input + float64(out)*p.Output } // per million: micros
	usd, best := 0.0, -1
	for _, p := range b.cfg.Prices {
		switch score := messages.GlobScore(p.Model, model); {
		case score > best:
			usd, best = cost(p), score
		case best < 0:
			usd = max(usd, cost(p))
		}
	}
	return int64(math.Ceil(usd))
}

func micros(usd float64) int64 { return int64(math.Ceil(usd*1e6 - 1e-6)) }

func number(raw []byte) (float64, bool) {
	n, err := strconv.ParseFloat(string(raw), 64)
	return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
}
