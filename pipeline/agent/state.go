package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// State is a run as its records tell it. The zero value is a run that has not begun. It is pure: [State.Next] says what
// is to be done, and [State.Apply] takes the record of what was done. The same records always give the same state. It
// is not safe for concurrent use.
type State struct {
	Start Start
	// Steps is how many records were applied; the next one has this number.
	Steps int
	// History is what earlier runs of the session left, and stands before Messages. The records do not hold it.
	History  []json.RawMessage
	Messages []json.RawMessage
	Open     []*Open
	Asked    *Asked
	// Below is what the run of a sub-agent has asked last; nil once there is a result.
	Below *Question
	Spent Spent
	// Keys are the values that stages keep in the run.
	Keys map[string]json.RawMessage
	End  *End

	misfits int
	// late are messages that stages added behind an answer; they follow the results of its tool calls.
	late []json.RawMessage
}

// Open is a tool call of the last answer.
type Open struct {
	ID        string
	Name      string
	Arguments string // as the model wrote them, or as a person has edited them
	// Shown are the arguments that a person saw who edited them; empty: nobody did.
	Shown string
	// Granted says that a person has said yes to these arguments.
	Granted bool
	Result  *Result // nil: there is none yet
}

// End is how a run ended: with a message or a fault.
type End struct {
	Reason  string          `json:"reason"`
	Message json.RawMessage `json:"message,omitempty"`
	Fault   *messages.Fault `json:"fault,omitempty"`
}

// Error is the fault as callers see it; null if the run did not fail.
func (e *End) Error() json.RawMessage {
	if e.Fault == nil {
		return json.RawMessage("null")
	}
	raw, _ := rawjson.Field(e.Fault.Body(), "error")
	return raw
}

// The reasons for which runs end.
const (
	Answered = "answered"
	Limited  = "limited"
	Jumped   = "jumped"
	Failed   = "failed"
)

// maxMisfits is how often a model may try again whose answer does not fit the output schema.
const maxMisfits = 2

// Apply takes the next record.
func (s *State) Apply(r Record) {
	s.Steps++
	if r.Bought != nil {
		s.Spent.add(*r.Bought)
	}
	s.merge(r.Updates, false)
	switch {
	case r.Start != nil:
		s.begin(r.Start)
	case r.Answer != nil:
		s.answered(r)
	case r.Asked != nil:
		s.Asked = r.Asked
	case r.Decided != nil:
		s.decided(r.Decided)
	case r.Below != nil:
		s.Below = r.Below
	default:
		s.results(r.Results)
	}
	if r.Answer == nil {
		s.merge(r.Updates, true)
	}
	s.close()
	if s.End == nil && s.Asked == nil && len(s.Open) == 0 {
		if over := s.modelLimit(); over != "" {
			s.limit(over, s.Start.Spec.Limits.Exit == ExitError)
		}
	}
}

func (s *State) begin(start *Start) {
	s.Start = *start
	s.Messages = append(slices.Clone(start.Messages), s.Messages...)
	if start.Jump != "" {
		s.jump(start.Jump, &Answer{})
	}
}

func (s *State) answered(r Record) {
	a := r.Answer
	if a.Reached {
		s.Spent.Models++
	}
	s.Spent.Usage = s.Spent.Usage.plus(a.Usage)
	m := s.named(a.Message)
	if len(m) > 0 {
		s.Messages = append(s.Messages, m)
	}
	s.merge(r.Updates, true)
	switch {
	case a.Jump != "":
		s.jump(a.Jump, a)
	case a.Fault != nil:
		s.fail(a.Fault)
	case len(chat.Msg{Raw: m}.ToolCalls()) > 0:
		s.open(chat.Msg{Raw: m}.ToolCalls(), a)
	case a.Misfit == "":
		s.End = &End{Reason: Answered, Message: m}
	default:
		s.again(a.Misfit)
	}
}

// named gives tool calls ids of their own where the model gave none or one twice, because results are told apart by
// them.
func (s *State) named(message json.RawMessage) json.RawMessage {
	m := chat.Msg{Raw: message}
	calls, seen, changed := m.ToolCalls(), map[string]bool{}, false
	for i, t := range calls {
		if id := t.ID(); id == "" || seen[id] {
			id = fmt.Sprintf("call_%d_%d", s.Steps, i)
			calls[i], changed = chat.ToolCall{Raw: rawjson.SetFieldString(t.Raw, "id", id)}, true
		}
		seen[calls[i].ID()] = true
	}
	if !changed {
		return message
	}
	return m.WithToolCalls(calls).Raw
}

// again asks the model for another final answer.
func (s *State) again(misfit string) {
	if s.misfits++; s.misfits > maxMisfits {
		s.fail(messages.NewFault(messages.ProviderBadReply, "the final answer of agent %s does not fit its output schema: %s",
			s.Start.Spec.Name, misfit).From(messages.TargetOrigin))
		return
	}
	s.Messages = append(s.Messages, chat.NewMsg("user", "Your answer does not fit the schema that it must have: "+misfit+
		". Answer again, with nothing but the JSON.").Raw)
}

// jump goes on where a stage said.
func (s *State) jump(target string, a *Answer) {
	switch target {
	case pipeline.JumpEnd:
		s.skip(s.unanswered(), "the run was ended")
		s.flush()
		s.End = &End{Reason: Jumped, Message: s.lastAnswer()}
	case pipeline.JumpModel:
		s.skip(s.unanswered(), "the model is asked again")
	case pipeline.JumpTool:
		calls := s.unanswered()
		if len(calls) == 0 {
			s.flush()
			calls = s.unanswered() // of a message that the stage has added
		}
		if len(calls) == 0 {
			s.fail(messages.NewFault(messages.StageError,
				"a stage jumped to tool, but no assistant message asks for a tool call that has no result"))
			return
		}
		s.open(calls, a)
	default:
		s.fail(messages.NewFault(messages.StageError, "%s: %q is not a target of a jump; known: %s, %s, %s",
			messages.NoteJumpTo, target, pipeline.JumpModel, pipeline.JumpTool, pipeline.JumpEnd))
	}
}

// unanswered are the tool calls of the last assistant message that have no result.
func (s *State) unanswered() []chat.ToolCall {
	has := map[string]bool{}
	for _, raw := range slices.Backward(s.Messages) {
		m := chat.Msg{Raw: raw}
		has[m.ToolCallID()] = true
		if m.Role() == "assistant" {
			return slices.DeleteFunc(m.ToolCalls(), func(t chat.ToolCall) bool { return has[t.ID()] })
		}
	}
	return nil
}

// lastAnswer is the last assistant message of the run, an empty one if there is none.
func (s *State) lastAnswer() json.RawMessage {
	for _, raw := range slices.Backward(s.Messages[min(len(s.Start.Messages), len(s.Messages)):]) {
		if (chat.Msg{Raw: raw}).Role() == "assistant" {
			return raw
		}
	}
	return chat.NewMsg("assistant", "").Raw
}

// skip gives each of the calls a result that says that it was not run.
func (s *State) skip(calls []chat.ToolCall, why string) {
	for _, t := range calls {
		s.Messages = append(s.Messages, toolMessage(Result{ID: t.ID(), Content: "This call was not run: " + why + "."}))
	}
}

// open takes on the tool calls of an answer, as far as the limits admit them.
func (s *State) open(calls []chat.ToolCall, a *Answer) {
	names, wrong := s.names(calls, a.Added)
	limits := s.Start.Spec.Limits.Tools
	over := limits.Admit(names, s.Spent.Tools, a.Thread)
	why, admitted := "", 0
	for i, t := range calls {
		o := &Open{ID: t.ID(), Name: cmp.Or(names[i], t.Name()), Arguments: t.Arguments()}
		if s.Open = append(s.Open, o); wrong[i] != "" {
			o.Result = &Result{ID: o.ID, IsError: true, Content: wrong[i] + "; call one of those that you were offered."}
			continue
		}
		if over[i] != "" {
			why = over[i]
			o.Result = &Result{ID: o.ID, IsError: true, Content: over[i] + ". The call was not run; do not make it again."}
			continue
		}
		admitted++
		s.Spent.count(o.Name, 1)
	}
	switch {
	case why == "" || limits.Exit == "" || limits.Exit == ExitContinue:
	case limits.Exit == ExitEnd && admitted == 0:
		s.close()
		s.limit(why, false)
	case limits.Exit == ExitEnd:
		s.limit(why+"; the run cannot end there, because other tool calls of the same answer are pending: "+
			"let the limit continue or fail", true)
	default:
		s.limit(why, true)
	}
}

// limit ends the run at a limit.
func (s *State) limit(text string, fault bool) {
	if fault {
		fault := messages.NewFault(messages.LimitExceeded, "%s", text).From(messages.TargetOrigin)
		s.End = &End{Reason: Limited, Fault: fault}
		return
	}
	m := chat.NewMsg("assistant", text).Raw
	s.Messages = append(s.Messages, m)
	s.End = &End{Reason: Limited, Message: m}
}

func (s *State) fail(f *messages.Fault) {
	s.End = &End{Reason: Failed, Fault: f}
}

// results takes what came of tool calls. One that is not open, or has a result already, is ignored.
func (s *State) results(all []Result) {
	s.Below = nil
	for _, r := range all {
		if o := s.call(r.ID); o != nil && o.Result == nil {
			o.Result = &r
			if r.Spent != nil {
				s.Spent.add(*r.Spent)
			}
		}
	}
}

func (s *State) call(id string) *Open {
	if i := slices.IndexFunc(s.Open, func(o *Open) bool { return o.ID == id }); i >= 0 {
		return s.Open[i]
	}
	return nil
}

// close puts the results behind the answer, in the order of its calls, once each call has one.
func (s *State) close() {
	if slices.ContainsFunc(s.Open, func(o *Open) bool { return o.Result == nil }) {
		return
	}
	for _, o := range s.Open {
		s.Messages = append(s.Messages, toolMessage(*o.Result))
	}
	s.Open = nil
	s.flush()
}

func (s *State) flush() {
	s.Messages = append(s.Messages, s.late...)
	s.late = nil
}

func toolMessage(r Result) json.RawMessage {
	return rawjson.Encode(struct {
		Role    string `json:"role"`
		ID      string `json:"tool_call_id"`
		Content string `json:"content"`
	}{"tool", r.ID, r.Content})
}
