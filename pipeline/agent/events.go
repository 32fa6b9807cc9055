package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Event is something that happened in a run, for those who follow it. The events of a run are made of its records, so
// every process gives them the same numbers.
type Event struct {
	At   Mark
	Type string
	Data json.RawMessage
}

// Mark is the place of an event in its run: the number of the step, and the place in the step. A text that a model is
// saying has its length so far as its place; what follows it in the step comes after its whole length.
type Mark struct{ Step, Place int }

// String writes the mark as "step.place".
func (m Mark) String() string { return strconv.Itoa(m.Step) + "." + strconv.Itoa(m.Place) }

// Before reports whether m comes before o.
func (m Mark) Before(o Mark) bool { return m.Step < o.Step || m.Step == o.Step && m.Place < o.Place }

// ParseMark reads a mark; the empty text is the beginning of the run.
func ParseMark(text string) (m Mark, err error) {
	if text == "" {
		return Mark{-1, 0}, nil
	}
	step, place, ok := strings.Cut(text, ".")
	m.Step, err = strconv.Atoi(step)
	if ok && err == nil {
		m.Place, err = strconv.Atoi(place)
	}
	if !ok || err != nil || m.Step < 0 || m.Place < 0 {
		return m, fmt.Errorf("%q is not the id of an event; they look like 3.120", text)
	}
	return m, nil
}

// The types of events.
const (
	RunStarted  = "run.started"
	TextDelta   = "text.delta"
	MessageDone = "message"
	ToolCalled  = "tool.called"
	ToolEnded   = "tool.ended"
	AskedFor    = "approval.wanted"
	DecidedOn   = "approval.decided"
	RunEnded    = "run.ended"
)

func textEvent(step, length int, text string) Event {
	return Event{Mark{step, length}, TextDelta, rawjson.Encode(struct {
		Text string `json:"text"`
	}{text})}
}

// Follower tells the events of a run, each once and in their order, from records and from pieces of text that come
// between them. The zero value follows a run from its beginning. It is not safe for concurrent use.
type Follower struct {
	Run   string
	State State
	// After is the last event that was seen; those up to it are not told again.
	After Mark

	early []Event // pieces of text that came before the record of the step before
}

// maxEarly bounds the pieces of text that wait for a record. What is over comes with the record of its step.
const maxEarly = 1024

// NewFollower follows a run after the event that was seen last.
func NewFollower(run string, after Mark) *Follower { return &Follower{Run: run, After: after} }

// Text takes a piece of text that a model is saying. It returns nothing if the piece was seen, or if one before it is
// missing: then the rest comes with the record of the step.
func (f *Follower) Text(e Event) []Event {
	if e.At.Step > f.State.Steps {
		if len(f.early) < maxEarly {
			f.early = append(f.early, e)
		}
		return nil
	}
	var data struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(e.Data, &data)
	seen := 0
	if f.After.Step == f.State.Steps {
		seen = f.After.Place
	}
	from := e.At.Place - len(data.Text)
	if e.At.Step != f.State.Steps || from > seen || e.At.Place <= seen {
		return nil
	}
	f.After = e.At
	return []Event{textEvent(e.At.Step, e.At.Place, data.Text[seen-from:])}
}

// Record takes the next record of the run and returns what has not been told of it.
func (f *Follower) Record(r Record) (out []Event) {
	step, place := f.State.Steps, 0
	tell := func(kind string, data any) {
		place++
		if at := (Mark{step, place}); f.After.Before(at) {
			out = append(out, Event{at, kind, rawjson.Encode(data)})
			f.After = at
		}
	}
	before := slices.Clone(f.State.Open)
	had := map[string]bool{}
	for _, o := range before {
		had[o.ID] = o.Result != nil
	}
	f.State.Apply(r)
	switch {
	case r.Start != nil:
		tell(RunStarted, map[string]any{"run": f.Run, "agent": r.Start.Spec.Name, "model": r.Start.Spec.Model})
	case r.Answer != nil:
		out, place = f.answer(r, out)
		if len(r.Answer.Message) > 0 {
			tell(MessageDone, map[string]any{"message": r.Answer.Message, "call": r.Answer.Call})
		}
	case r.Asked != nil:
		tell(AskedFor, Question{Run: f.Run, Agent: f.State.Start.Spec.Name, Step: step, Asked: *r.Asked})
	case r.Below != nil:
		q := *r.Below
		q.Run = f.Run // under which it is decided
		tell(AskedFor, q)
	case r.Decided != nil:
		tell(DecidedOn, map[string]any{"decisions": r.Decided.Decisions})
	}
	if r.Answer != nil {
		for _, t := range (chat.Msg{Raw: r.Answer.Message}).ToolCalls() {
			tell(ToolCalled, map[string]any{"id": t.ID(), "name": t.Name(), "arguments": t.Arguments()})
		}
	}
	for _, o := range before { // the same calls as they are now
		if o.Result != nil && !had[o.ID] {
			tell(ToolEnded, o.Result)
		}
	}
	if end := f.State.End; end != nil {
		tell(RunEnded, map[string]any{"reason": end.Reason, "message": end.Message, "error": end.Error()})
	}
	early := f.early
	f.early = nil
	for _, e := range early {
		out = append(out, f.Text(e)...)
	}
	return out
}

// answer tells what was not seen of the text of an answer.
func (f *Follower) answer(r Record, out []Event) ([]Event, int) {
	text := chat.Msg{Raw: r.Answer.Message}.Text()
	step := f.State.Steps - 1
	seen := 0
	if f.After.Step == step {
		seen = min(f.After.Place, len(text))
	}
	if at := (Mark{step, len(text)}); seen < len(text) && f.After.Before(at) {
		out = append(out, textEvent(step, len(text), text[seen:]))
		f.After = at
	}
	return out, len(text)
}
