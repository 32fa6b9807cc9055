package agent

import (
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Hook looks at runs and at their model calls. It has up to four functions; those that are nil are left out. It is a
// stage of the agent chain and one of the model chain under the same name: [Hook.Stages].
type Hook struct {
	Name  string
	Order int
	// Jumps are the targets that its functions may jump to: model, tool, end.
	Jumps []string

	BeforeAgent, AfterAgent, BeforeModel, AfterModel HookFunc
}

// HookFunc is one function of a hook. It reads the state of the run with [StateOf]. It may run again for the same call
// after a crash.
type HookFunc func(ctx context.Context, c *messages.Call) (Change, error)

// Change is what a hook wants; the zero value changes nothing.
type Change struct {
	// Set are values of the run's state by key. Those of the key messages are appended to the messages of the run; in
	// front of a model call also to its request.
	Set map[string]json.RawMessage
	// Jump is where the run goes on: model, tool or end; empty: as it would.
	Jump string
}

// Stages returns the stages that carry the hook out: one of kind agent, one of kind model, or only one of them.
func (h Hook) Stages() []pipeline.Stage {
	var out []pipeline.Stage
	if h.BeforeAgent != nil || h.AfterAgent != nil {
		out = append(out, pipeline.Stage{Name: h.Name, Kind: messages.Agent, Order: h.Order, Jumps: h.Jumps,
			Before: phase(h.BeforeAgent), After: phase(h.AfterAgent), Reads: []string{messages.RequestBody, messages.ReplyBody}})
	}
	if h.BeforeModel != nil || h.AfterModel != nil {
		out = append(out, pipeline.Stage{Name: h.Name, Kind: messages.Model, Order: h.Order, Jumps: h.Jumps,
			ApplyTo: []string{pipeline.ApplyAgent}, Before: phase(h.BeforeModel), After: phase(h.AfterModel),
			Reads: []string{messages.RequestBody, messages.ReplyBody}, Writes: []string{"request.messages"}})
	}
	return out
}

func phase(f HookFunc) pipeline.Func {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		change, err := f(ctx, c)
		if err != nil {
			return pipeline.Verdict{}, err
		}
		UpdateState(c, change.Set)
		if raw := change.Set[MessagesKey]; raw != nil && !c.Slip.Back {
			msgs := chat.Messages(c.Request())
			for _, m := range raws(raw) {
				msgs = append(msgs, chat.Msg{Raw: m})
			}
			c.SetRequest(chat.WithMessages(c.Request(), msgs))
		}
		if change.Jump != "" {
			return pipeline.Jump(change.Jump), nil
		}
		return pipeline.Continue(), nil
	}
}

// FindTool finds a tool among those of a model call: the first of the name, or, with an empty name, of the type
// (function, custom). Hooks that need a tool so get it; ok is false where there is none.
func FindTool(request []byte, name, kind string) (definition json.RawMessage, ok bool) {
	raw, _ := rawjson.Field(request, "tools")
	for _, e := range rawjson.Elements(raw) {
		is, _ := rawjson.FieldString(e, "type")
		inner, _ := rawjson.Field(e, is)
		called, _ := rawjson.FieldString(inner, "name")
		if name != "" && called == name || name == "" && is == kind {
			return e, true
		}
	}
	return nil, false
}
