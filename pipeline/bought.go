package pipeline

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// Bought is what a model call has used that was made for another call.
type Bought struct {
	// Model is who was asked, or whose answer a cache had; empty where the call was refused before.
	Model string `json:"model,omitempty"`
	// Input, Output and Total are tokens.
	Input  int64 `json:"input,omitempty"`
	Output int64 `json:"output,omitempty"`
	Total  int64 `json:"total,omitempty"`
	// Estimated says that the reply did not say how many tokens it used.
	Estimated bool `json:"estimated,omitempty"`
	// Cost is what the reply itself says that it cost, as usage.cost has it.
	Cost json.RawMessage `json:"cost,omitempty"`
	// Free says that a stage answered in the model's place, such as a cache: nobody is paid.
	Free bool `json:"free,omitempty"`
}

// bytesPerToken is the estimate where a provider does not say what a call has used: it is not free.
const bytesPerToken = 4

// BoughtBy is what a model call has used that has ended.
func BoughtBy(c *messages.Call) (b Bought) {
	reached := c.Flag(messages.NoteExecutorReached)
	if !reached && c.Fault != nil {
		return b
	}
	if b.Model = view.ModelName(c.Request()); c.Fault != nil {
		return b
	}
	told := view.Of(c.Wire).Usage(c.Reply())
	b.Input, b.Output, b.Total = told.Input, told.Output, max(told.Total, told.Input+told.Output)
	if b.Total == 0 && reached {
		b.Input, b.Output = int64(len(c.Request())/bytesPerToken), int64(len(c.Reply())/bytesPerToken)
		b.Total, b.Estimated = b.Input+b.Output, true
	}
	usage, _ := rawjson.Field(c.Reply(), "usage")
	b.Cost, _ = rawjson.Field(usage, "cost")
	_, b.Free = c.Notes[messages.NoteStopper]
	return b
}

// Call is a call that has used this and nothing more, for those who know what calls cost.
func (b Bought) Call(tenant string) *messages.Call {
	usage := map[string]any{"prompt_tokens": b.Input, "completion_tokens": b.Output, "total_tokens": b.Total}
	if len(b.Cost) > 0 {
		usage["cost"] = b.Cost
	}
	c := messages.NewCall(messages.Model, tenant, rawjson.Encode(map[string]string{"model": b.Model}))
	c.SetReply(rawjson.Encode(map[string]any{"usage": usage}))
	if b.Free {
		c.Note(messages.NoteStopper, "")
	}
	return c
}

// bill collects what a stage buys in one phase.
type bill struct {
	mu     sync.Mutex
	bought map[string]Bought
}

type billKey struct{}

// Charge puts a model call that has ended on the bill of the phase whose context ctx is, if the phase's call belongs to
// a run: the run pays for it. Callers call it; it does nothing in other contexts, and may be called twice for one call.
func Charge(ctx context.Context, c *messages.Call) {
	b, ok := ctx.Value(billKey{}).(*bill)
	if !ok || c == nil || c.Kind != messages.Model {
		return
	}
	used := BoughtBy(c)
	if used.Model == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bought == nil {
		b.bought = map[string]Bought{}
	}
	b.bought[c.ID] = used
}

// billed runs a phase of a call that belongs to a run, and notes on the call what the stage has bought meanwhile.
func billed(ctx context.Context, run Func, c *messages.Call) (Verdict, string, error) {
	b := &bill{}
	v, stack, err := guard(context.WithValue(ctx, billKey{}, b), run, c)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.bought) > 0 {
		all := BoughtFor(c)
		if all == nil {
			all = map[string]Bought{}
		}
		maps.Copy(all, b.bought)
		c.Note(messages.NoteBought, all)
	}
	return v, stack, err
}

// BoughtFor is what stages have bought for a call, by the ids of the calls that they made.
func BoughtFor(c *messages.Call) map[string]Bought {
	var all map[string]Bought
	c.Noted(messages.NoteBought, &all)
	return all
}
