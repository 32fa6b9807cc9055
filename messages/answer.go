package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Answer is a member's answer to a question: its verdict, and the parts of the call that the phase changed. The reader
// must judge it: nothing is known about an answer except that it is well formed.
type Answer struct {
	// Member names the process that ran the phase, Took is how long the phase ran.
	Member string
	Took   time.Duration
	// Verdict is the verdict's name. Delay belongs to an Again, Expires and Question to a Hold, Target to a Jump.
	Verdict        string
	Delay, Expires time.Duration
	Question       json.RawMessage
	Target         string
	// Error is set where the phase failed; the verdict then counts for nothing.
	Error *Thrown
	// State is the stage's new private state; nil if it does not change.
	State json.RawMessage
	// Set and Unset are the notes that changed.
	Set   Notes
	Unset []string
	// Fault is the call's new fault; Cleared says that the call no longer has one.
	Fault   *Fault
	Cleared bool

	bodies []change
	with   *body // the request of an AgainWith
}

// Thrown is the error of a phase as it travels.
type Thrown struct {
	Text string
	// Fault is the fault that the error is or wraps; nil if there is none.
	Fault *Fault
	// Open and Closed mark an error that decides itself what happens to the call.
	Open, Closed bool
	// Over is set where the error says only that the call ran out of time or was cancelled: it is the code for that.
	Over Code
	// Absent is the subject without a responder, where a program elsewhere does the stage's work.
	Absent string
	// Stack is that of a panic.
	Stack string
}

// change says what happened to a body: it was dropped, replaced by another body of the question, edited, or is new.
type change struct {
	name    string
	dropped bool
	alias   string
	edits   []edit
	line    *body
}

// With sets the request of an AgainWith.
func (a *Answer) With(request []byte) {
	line := compact(request)
	a.with = &line
}

// Request is the request of an AgainWith, compacted if it is JSON; nil if there is none.
func (a *Answer) Request() []byte {
	if a.with == nil || !a.with.text {
		return a.withRaw()
	}
	var text string
	if json.Unmarshal(a.with.raw, &text) != nil {
		return a.with.raw
	}
	return append([]byte{}, text...)
}

func (a *Answer) withRaw() []byte {
	if a.with == nil {
		return nil
	}
	return a.with.raw
}

// Spill replaces each new body of more than limit bytes by a claim check, as [Call.Spill] does.
func (a *Answer) Spill(limit int, store func(raw []byte) (ref string, err error)) error {
	lines := []*body{a.with}
	for _, ch := range a.bodies {
		if len(ch.edits) == 0 {
			lines = append(lines, ch.line)
		}
	}
	for _, l := range lines {
		if l == nil || l.ref != "" || len(l.raw) <= limit {
			continue
		}
		var err error
		if l.ref, err = store(l.raw); err != nil {
			return err
		}
	}
	return nil
}

// Ref is the claim check of the request of an AgainWith whose bytes are not here; [Answer.Fill] must put them in place
// before the answer is applied. Other bodies stay behind their claim checks until they are read.
func (a *Answer) Ref() string {
	if a.with == nil || a.with.raw != nil {
		return ""
	}
	return a.with.ref
}

// Fill puts the bytes behind Ref in place.
func (a *Answer) Fill(raw []byte) error {
	if err := wellFormed(raw, a.with.text); err != nil {
		return err
	}
	a.with.raw = raw
	return nil
}

// Answer compares the call with its state when the question came. Without bodies it leaves out the changes to bodies
// and fault: the phase failed, and the owner restores them.
func (q *Question) Answer(bodies bool) *Answer {
	a := &Answer{}
	if state := q.Call.Slip.state(); !bytes.Equal(state, q.state) {
		a.State = state
	}
	for k, v := range q.Call.Notes {
		if was, ok := q.notes[k]; !ok || !bytes.Equal(was, v) {
			if a.Set == nil {
				a.Set = Notes{}
			}
			a.Set[k] = v
		}
	}
	for k := range q.notes {
		if _, ok := q.Call.Notes[k]; !ok {
			a.Unset = append(a.Unset, k)
		}
	}
	slices.Sort(a.Unset)
	if bodies {
		q.faultChange(a)
		q.bodyChanges(a)
	}
	return a
}

func (q *Question) faultChange(a *Answer) {
	f := q.Call.Fault
	if f == nil {
		a.Cleared = q.fault != nil
		return
	}
	w := newWriter(nil)
	w.fault("f", f)
	if is := w.B[len(`{"f":`):]; !bytes.Equal(is, q.fault) {
		a.Fault = f
	}
}

func (q *Question) bodyChanges(a *Answer) {
	b := &q.Call.bodies
	stage, _ := q.Call.Slip.Stage()
	for _, name := range []string{RequestBody, ReplyBody, KeptPrefix + stage} {
		was := q.names[rank(name)]
		is, has := b.names[name]
		switch {
		case !has && was > 0:
			a.bodies = append(a.bodies, change{name: name, dropped: true})
		case !has, was > 0 && b.lines[is].from == was:
		case b.lines[is].from > 0:
			a.bodies = append(a.bodies, change{name: name, alias: q.named(b.lines[is].from, stage)})
		default:
			a.bodies = append(a.bodies, q.changed(name, was-1, &b.lines[is]))
		}
	}
	a.unshare()
}

// unshare drops the edits of bodies that two names share: they go as one line.
func (a *Answer) unshare() {
	for i := range a.bodies {
		for j := range a.bodies[:i] {
			if l := a.bodies[i].line; l != nil && l == a.bodies[j].line {
				a.bodies[i].edits, a.bodies[j].edits = nil, nil
			}
		}
	}
}

// named is a name under which a line of the question came.
func (q *Question) named(line int, stage string) string {
	return [...]string{RequestBody, ReplyBody, KeptPrefix + stage}[slices.Index(q.names[:], line)]
}

// changed returns a new body, or the edits that turn the old body into it if they are much smaller.
func (q *Question) changed(name string, was int, line *body) change {
	c := change{name: name, line: line}
	if was >= 0 && !line.text && !q.came[was].text && q.came[was].ref == "" {
		c.edits = editsOf(q.came[was].raw, line.raw)
	}
	return c
}

// Apply makes the changes of the answer to the call. If the answer does not fit the call, it changes nothing and
// returns an error.
func (a *Answer) Apply(c *Call) error {
	stage, _ := c.Slip.Stage()
	next := c.bodies.clone()
	pushed := map[*body]int{}
	for _, ch := range a.bodies {
		if ch.name != RequestBody && ch.name != ReplyBody && ch.name != KeptPrefix+stage {
			return fmt.Errorf("it changes the body %q, which is not the stage's", ch.name)
		}
		switch i, ok := c.bodies.names[ch.alias]; {
		case ch.dropped:
			delete(next.names, ch.name)
		case ch.alias != "" && !ok:
			return fmt.Errorf("it makes %s what %s is, which is not there", ch.name, ch.alias)
		case ch.alias != "":
			next.name(ch.name, i)
		case len(ch.edits) > 0:
			raw, err := applyEdits(&c.bodies, ch)
			if err != nil {
				return fmt.Errorf("its edits of %s: %w", ch.name, err)
			}
			next.name(ch.name, next.push(body{raw: raw, size: len(raw)}))
		default:
			at, ok := pushed[ch.line]
			if !ok {
				at = next.push(body{raw: ch.line.raw, text: ch.line.text, ref: ch.line.ref, size: ch.line.size})
				pushed[ch.line] = at
			}
			next.name(ch.name, at)
		}
	}
	if len(a.bodies) > 0 {
		c.bodies = next.packed()
	}
	a.applyFacts(c)
	return nil
}

func applyEdits(b *bodies, ch change) ([]byte, error) {
	i, ok := b.names[ch.name]
	if !ok || b.lines[i].text {
		return nil, errors.New("the body is not there, or is no JSON")
	}
	raw := b.lines[i].raw
	for _, e := range ch.edits {
		var err error
		if raw, err = e.apply(raw); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

func (a *Answer) applyFacts(c *Call) {
	if a.State != nil {
		c.Slip.setState(a.State)
	}
	for k, v := range a.Set {
		if c.Notes == nil {
			c.Notes = Notes{}
		}
		c.Notes[k] = v
	}
	for _, k := range a.Unset {
		delete(c.Notes, k)
	}
	if a.Fault != nil || a.Cleared {
		c.Fault = a.Fault
	}
}
