package agent

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// passed are the fields of a caller's request that each model call of the run gets as they are.
var passed = []string{"temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "user",
	"safety_identifier", "reasoning_effort", "verbosity", "service_tier", "presence_penalty", "frequency_penalty",
	"metadata"}

// params are the fields of the caller's request that each model call gets.
func params(body []byte) json.RawMessage {
	var out []byte
	for _, key := range passed {
		if raw, ok := rawjson.Field(body, key); ok {
			if out == nil {
				out = []byte("{}")
			}
			out = rawjson.SetField(out, key, raw)
		}
	}
	return out
}

// request is the body of the next model call. Its beginning is that of the call before, so that a provider's prompt
// cache holds.
func (s *State) request() []byte {
	spec := s.Start.Spec
	var msgs [][]byte
	if spec.Instructions != "" {
		msgs = append(msgs, chat.NewMsg("system", spec.Instructions).Raw)
	}
	for _, m := range s.History {
		msgs = append(msgs, m)
	}
	for _, m := range s.Messages {
		msgs = append(msgs, m)
	}
	body := rawjson.SetFieldString([]byte("{}"), "model", spec.Model)
	body = rawjson.SetField(body, "messages", rawjson.Array(msgs))
	if len(s.Start.Tools) > 0 {
		tools := make([][]byte, len(s.Start.Tools))
		for i, t := range s.Start.Tools {
			tools[i] = t.Definition
		}
		body = rawjson.SetField(body, "tools", rawjson.Array(tools))
	}
	if len(spec.OutputSchema) > 0 {
		body = rawjson.SetField(body, "response_format", rawjson.Encode(map[string]any{"type": "json_schema",
			"json_schema": map[string]any{"name": "answer", "schema": spec.OutputSchema}}))
	}
	rawjson.EachField(s.Start.Params, func(key string, raw []byte) { body = rawjson.SetField(body, key, raw) })
	return body
}

// names are the names of the called tools as the registry knows them. Of one that the run does not offer the name is
// empty, and wrong says so. A model that calls another one gets an error, whatever there is under that name. added are
// tools that stages offered beside those of the run.
func (s *State) names(calls []chat.ToolCall, added []string) (names, wrong []string) {
	names, wrong = make([]string, len(calls)), make([]string, len(calls))
	for i, c := range calls {
		names[i] = c.Name()
		at := slices.IndexFunc(s.Start.Tools, func(t Tool) bool { return cmp.Or(t.As, t.Name) == names[i] })
		switch {
		case at >= 0:
			names[i] = s.Start.Tools[at].Name
		case !slices.Contains(added, names[i]):
			wrong[i], names[i] = "There is no tool '"+names[i]+"' here", ""
		}
	}
	return names, wrong
}

// Tool finds the tool of a name among those that the run offers.
func (s *State) Tool(name string) (Tool, bool) {
	for _, t := range s.Start.Tools {
		if t.Name == name {
			return t, true
		}
	}
	return Tool{}, false
}

// Reply is the chat reply of a run that has ended with a message. whole puts everything that the model said in the run
// into it, as somebody has read it who follows the run; else it is the last message alone.
func (s *State) Reply(run string, at time.Time, whole bool) []byte {
	text := chat.Msg{Raw: s.End.Message}.Text()
	if whole {
		text = s.said()
	}
	reply := chat.TextReply(run, "agent/"+s.Start.Spec.Name, text, at.Unix())
	m := chat.Msg{Raw: rawjson.DropField(s.End.Message, "tool_calls")}.WithText(text)
	choice := chat.Choices(reply)[0].WithMessage(m)
	reply = chat.WithChoices(reply, []chat.Choice{choice})
	return rawjson.SetField(reply, "usage", rawjson.Encode(struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	}{s.Spent.Usage.Prompt, s.Spent.Usage.Completion, s.Spent.Usage.Total}))
}

// between stands between the texts of two answers of one run.
const between = "\n\n"

// said is all that the model has said in the run.
func (s *State) said() string {
	var out []string
	for _, raw := range s.Messages[min(len(s.Start.Messages), len(s.Messages)):] {
		if m := (chat.Msg{Raw: raw}); m.Role() == "assistant" && m.Text() != "" {
			out = append(out, m.Text())
		}
	}
	return strings.Join(out, between)
}
