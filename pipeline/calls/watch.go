package calls

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// watch writes the story of one call.
type watch struct {
	r              *Recorder
	sampled        bool
	explain, texts bool
	redactor       int // the place of the stage that takes personal data out; -1: there is none

	mu    sync.Mutex // the story is read while the call runs
	story Story      // without its steps
	steps *buffer    // those so far, written, with commas between them; nil when the call has left
	told  int        // how many they are
	where place
	by    Answerer
	usage chat.Usage

	values         int    // bytes of texts so far
	request, reply []byte // as the last step left them
}

// Ran implements pipeline.Watch.
func (w *watch) Ran(c *messages.Call, p pipeline.PhaseRun) {
	s := Step{At: p.Began.Sub(w.story.Began).Microseconds(), Stage: p.Stage, Phase: p.Phase, Attempt: p.Attempt,
		Verdict: p.Verdict.String(), Micros: p.Took.Microseconds(), Waited: max(0, p.Elapsed-p.Took).Microseconds()}
	if p.Verdict.String() == "Again" {
		s.Delay = p.Verdict.Delay().Microseconds()
	}
	if p.Member != w.r.opts.Name {
		s.Member = p.Member
	}
	if p.Skipped {
		s.Verdict = "skipped"
	}
	if p.Err != nil {
		s.Error = w.words(reason(p.Err), codeOf(p.Err))
	}
	s.Changes = w.changes(c, p.Stage, p.Phase)
	w.add(&s, placeOf(c))
	if w.r.isWatched() {
		w.happened(w.r.subjects.Event("hop", string(c.Kind), string(p.Phase), messages.Token(p.Stage)), &s)
	}
}

// words is the text of a failure. On the way of a stage that takes personal data out it is only the code: what a target
// or a stage says has not passed that stage yet.
func (w *watch) words(text, code string) string {
	if w.redactor >= 0 {
		return code
	}
	return cut(text)
}

// reason is why something failed, as operators may know it.
func reason(err error) string {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return string(f.Code) + ": " + f.Reason()
	}
	return err.Error()
}

// Target implements pipeline.Watch.
func (w *watch) Target(c *messages.Call, t pipeline.TargetRun) {
	took := t.Facts.Micros
	s := Step{At: t.Began.Sub(w.story.Began).Microseconds(), Class: t.Class, Attempt: c.Slip.Tries, Micros: took,
		Waited: max(0, t.Elapsed.Microseconds()-took), Provider: t.Facts.Provider, Model: t.Facts.Model,
		First: t.Facts.FirstMicros, Shown: t.First.Microseconds(), Outcome: OK}
	if t.Member != w.r.opts.Name {
		s.Member = t.Member
	}
	switch {
	case t.Err != nil:
		s.Outcome, s.Error = codeOf(t.Err), w.words(reason(t.Err), codeOf(t.Err))
	case c.Fault != nil:
		s.Outcome, s.Error = string(c.Fault.Code), w.words(c.Fault.Reason(), string(c.Fault.Code))
	default:
		if t.Usage != (chat.Usage{}) {
			s.Usage = &t.Usage
		}
	}
	w.request, w.reply = c.Request(), c.Reply()
	w.add(&s, placeOf(c))
	if s.Outcome == OK {
		w.answered(&s, t.Member)
	}
	if w.r.isWatched() {
		w.happened(w.r.subjects.Event("target", string(c.Kind), cmp.Or(messages.Token(t.Class), "none")), &s)
	}
}

func codeOf(err error) string {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return string(f.Code)
	}
	if errors.Is(err, pipeline.ErrCancelled) {
		return string(messages.Cancelled)
	}
	return string(messages.DeadlineExceeded)
}

func (w *watch) answered(s *Step, member string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = Answerer{Provider: s.Provider, Model: s.Model, Member: member}
	w.story.By, w.story.Usage = &w.by, nil
	if s.Usage != nil {
		w.usage = *s.Usage
		w.story.Usage = &w.usage
	}
}

func (w *watch) add(s *Step, where place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.where = where
	if w.told >= mostSteps {
		w.story.Left++
		return
	}
	if w.told++; w.told > 1 {
		w.steps.b = append(w.steps.b, ',')
	}
	w.steps.b = appendStep(w.steps.b, s)
}

// happened tells of one step.
func (w *watch) happened(subject string, s *Step) {
	event := w.r.buffer()
	event.b = appendHappened(event.b, &w.story, s)
	w.r.tell(subject, event)
}

// Left implements pipeline.Watch.
func (w *watch) Left(c *messages.Call, how pipeline.Departure) {
	w.r.mu.Lock()
	if w.r.running[c.ID] == w {
		delete(w.r.running, c.ID)
	}
	w.r.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finish(c, how)
	subject := w.r.subjects.EndEvent(c.Kind, c.Tenant, w.story.Outcome, c.ID)
	if how != pipeline.Ended {
		subject = w.r.subjects.PartEvent(c.Kind, c.Tenant, w.story.State, c.ID)
	}
	if w.sampled || c.Explain || how != pipeline.Ended || c.Fault != nil {
		event := w.r.buffer()
		event.b = appendStory(event.b, &w.story, w.steps.b)
		w.r.tell(subject, event)
	}
	w.r.drop(w.steps)
	w.steps = nil
}

// finish writes down how the call left.
func (w *watch) finish(c *messages.Call, how pipeline.Departure) {
	s := &w.story
	s.State = [...]string{pipeline.Ended: Ended, pipeline.Parked: Held, pipeline.Moved: Moved}[how]
	s.Ended = time.Now().UTC()
	s.Micros = s.Ended.Sub(s.Accepted).Microseconds()
	s.Attempts = c.Slip.Tries
	c.Noted(messages.NoteStopper, &s.StoppedBy)
	c.Noted(messages.NoteDegraded, &s.Degraded)
	c.Noted(messages.NoteModelCache, &s.Cache)
	if c.Flag(messages.NoteCacheHit) {
		s.Cache = "hit"
	}
	if how != pipeline.Ended {
		s.At = w.where.String()
		return
	}
	s.Outcome = OK
	if f := c.Fault; f != nil {
		s.Outcome, s.Origin, s.Message = string(f.Code), f.Origin, cut(f.Message)
		if f.Detail != "" && w.redactor < 0 {
			s.Reason = cut(f.Detail)
		}
	}
}

// now is the story of a call that runs; ok is false if it has left. It has its steps if they are wanted.
func (w *watch) now(steps bool) (s Story, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.steps == nil {
		return s, false
	}
	s = w.story
	s.At, s.Micros = w.where.String(), time.Since(s.Accepted).Microseconds()
	if s.By != nil {
		by := *s.By
		s.By = &by
	}
	if s.Usage != nil {
		usage := *s.Usage
		s.Usage = &usage
	}
	if !steps {
		s.Left = 0
	} else if err := json.Unmarshal(slices.Concat([]byte{'['}, w.steps.b, []byte{']'}), &s.Steps); err != nil {
		w.r.opts.Log.Error("the steps of a running call cannot be read", "call", s.Call, "err", err)
	}
	return s, true
}

// place is where a call is, kept as it is read: most are never shown.
type place struct {
	stage string
	phase messages.Phase
	back  bool
	entry bool
}

func placeOf(c *messages.Call) place {
	stage, phase := c.Slip.Stage()
	return place{stage, phase, c.Slip.Back, c.Slip.At < 0 && !c.Slip.Back}
}

// String says where, as faults do.
func (p place) String() string {
	switch {
	case p.stage != "":
		return string(p.phase) + " of stage " + p.stage
	case p.back:
		return "the reply"
	case p.entry:
		return "the entry"
	}
	return "the target"
}
