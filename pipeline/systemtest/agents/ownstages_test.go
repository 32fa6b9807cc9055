package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
)

// ownStages are the stages of its own that an installation has.
func ownStages(p partSpec) (out []pipeline.Stage) {
	switch p.Stages {
	case "wrap":
		out = append(out, pipeline.Wrap(pipeline.Stage{Name: "twice", Kind: messages.Model, Order: 20}, twice))
	case "hooks":
		out = append(out, hookAt(p.Upstream, "h1", 21, pipeline.JumpEnd).Stages()...)
		out = append(out, hookAt(p.Upstream, "h2", 22, pipeline.JumpEnd, pipeline.JumpModel, pipeline.JumpTool).Stages()...)
	}
	return out
}

// twice asks the model twice and answers with the second answer, which is told the first.
func twice(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
	first, err := next(c.Request())
	if err != nil {
		return nil, err
	}
	return next(chat.WithMessages(c.Request(), append(chat.Messages(c.Request()), chat.Choices(first)[0].Message())))
}

// hookAt is a hook that says where it is and what the state of the run is, and does there what the run's first words
// tell it: "h2.beforeModel jump end", "h1.before fail", "set".
func hookAt(upstream, name string, order int, jumps ...string) agent.Hook {
	at := func(where string) agent.HookFunc {
		return func(ctx context.Context, c *messages.Call) (agent.Change, error) {
			var state []byte
			if s := agent.StateOf(c); s != nil && where == "beforeModel" {
				state = append([]byte(" "), rawjson.Encode(s)...)
			}
			to := upstream + "/hook/" + name + "." + where
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(state))
			if err != nil {
				return agent.Change{}, err
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return agent.Change{}, err
			}
			return told(c, name, where), errors.Join(res.Body.Close(), failing(c, name, where))
		}
	}
	return agent.Hook{Name: name, Order: order, Jumps: jumps, BeforeAgent: at("before"), AfterAgent: at("after"),
		BeforeModel: at("beforeModel"), AfterModel: at("afterModel")}
}

// words are the first that a user said.
func words(request []byte) []string {
	for _, m := range chat.Messages(request) {
		if m.Role() == "user" {
			return append(strings.Fields(m.Text()), "", "", "")
		}
	}
	return make([]string, 3)
}

func failing(c *messages.Call, name, where string) error {
	if w := words(c.Request()); w[0] == name+"."+where && w[1] == "fail" {
		return errors.New("as it was told")
	}
	return nil
}

func told(c *messages.Call, name, where string) (change agent.Change) {
	w := words(c.Request())
	if w[0] == "set" && where == "afterModel" {
		change.Set = map[string]json.RawMessage{"log": rawjson.Encode([]string{name}), "last": rawjson.Encode(name)}
	}
	if w[0] != name+"."+where || w[1] != "jump" {
		return change
	}
	msgs := chat.Messages(c.Request())
	once := where == "afterModel" && len(chat.Choices(c.Reply())[0].Message().ToolCalls()) > 0 ||
		where == "beforeModel" && (w[2] != pipeline.JumpTool || msgs[len(msgs)-1].Role() == "assistant")
	if once {
		change.Jump = w[2]
	}
	return change
}

// limitsOf are the limits of an agent of a name.
func limitsOf(name string) agent.Limits {
	two := 2
	switch name {
	case "two":
		return agent.Limits{ModelCalls: 2}
	case "two-or-fail":
		return agent.Limits{ModelCalls: 2, Exit: agent.ExitError}
	case "none":
		return agent.Limits{}
	case "two-tools":
		return agent.Limits{ModelCalls: 9, Tools: agent.ToolLimits{Limit: agent.Limit{Run: &two}, Exit: agent.ExitContinue}}
	case "two-tools-or-end":
		return agent.Limits{ModelCalls: 9, Tools: agent.ToolLimits{Limit: agent.Limit{Run: &two}, Exit: agent.ExitEnd}}
	}
	return agent.Limits{ModelCalls: 100}
}
