package agent

import (
	"encoding/json"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Rule says how an update of a key joins what is there.
type Rule string

// The rules.
const (
	Replace Rule = "replace" // the newest value counts
	Append  Rule = "append"  // values are lists, which are joined
)

// MessagesKey is the key of a run's messages. It always appends.
const MessagesKey = "messages"

// Update is what a stage changes of the run's state, by key.
type Update struct {
	Set map[string]json.RawMessage `json:"set"`
	// After says that an after made it: its messages follow the answer, those of a before stand in front of it.
	After bool `json:"after,omitempty"`
}

// UpdateState adds an update to the state of the run that the call belongs to. The loop merges it, by the rule of each
// key, when the call has ended. Updates of several stages are merged one after the other; none is lost.
func UpdateState(c *messages.Call, set map[string]json.RawMessage) {
	if len(set) > 0 {
		c.Note(messages.NoteRunUpdate, append(updatesOf(c), Update{set, c.Slip.Back}))
	}
}

func updatesOf(c *messages.Call) (all []Update) {
	c.Noted(messages.NoteRunUpdate, &all)
	return all
}

// StateOf returns the state of the run that the call belongs to, as it was when the call was made; nil for other calls.
func StateOf(c *messages.Call) map[string]json.RawMessage {
	var state map[string]json.RawMessage
	c.Noted(messages.NoteRunState, &state)
	return state
}

// merge joins the updates of one side with the state of the run.
func (s *State) merge(updates []Update, after bool) {
	for _, u := range updates {
		if u.After != after {
			continue
		}
		for key, value := range u.Set {
			switch {
			case key == MessagesKey && after:
				s.late = append(s.late, raws(value)...)
			case key == MessagesKey:
				s.Messages = append(s.Messages, raws(value)...)
			case s.Start.Spec.Rules[key] == Append:
				s.set(key, rawjson.Array(append(rawjson.Elements(s.Keys[key]), elements(value)...)))
			default:
				s.set(key, value)
			}
		}
	}
}

func (s *State) set(key string, value json.RawMessage) {
	if s.Keys == nil {
		s.Keys = map[string]json.RawMessage{}
	}
	s.Keys[key] = value
}

// elements are those of a list, or the value itself.
func elements(value json.RawMessage) [][]byte {
	if len(value) > 0 && value[0] == '[' {
		return rawjson.Elements(value)
	}
	return [][]byte{value}
}

func raws(value json.RawMessage) []json.RawMessage {
	var out []json.RawMessage
	for _, e := range elements(value) {
		out = append(out, slices.Clone(json.RawMessage(e)))
	}
	return out
}
