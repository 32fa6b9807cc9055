package messages

import (
	"encoding/json"
	"slices"
	"time"
)

// Slip is the route of one call: a snapshot of the stages that were on when it entered, and how far it has come.
// Switching a stage on or off does not affect calls in flight, because their slips do not change.
type Slip struct {
	Stops []Stop `json:"stops"`
	// At is the stop whose phase is to run or has just run; len(Stops) is the target, -1 the caller.
	At   int  `json:"at"`
	Back bool `json:"back,omitempty"`
	// Frames holds one frame for each stage whose before passed on and whose after has not yet run, outermost first.
	Frames []Frame `json:"frames,omitempty"`
	// Scratch is the private state of the before that has the call now; it moves into its frame when it passes on.
	Scratch json.RawMessage `json:"scratch,omitempty"`
	// Hops counts the phases that ran, over all attempts; it bounds loops.
	Hops int `json:"hops,omitempty"`
	// Tries counts how often the target ran (header Shallot-Attempts).
	Tries int `json:"tries,omitempty"`
	// Runs is how often the target may run, over the attempts of all stages; 0 means that only the deadline limits it.
	Runs int `json:"runs,omitempty"`
	// Path lists what ran, in order, for people (header Shallot-Path).
	Path []string `json:"path,omitempty"`

	open Opening // what the before that has just run cost; Advance puts it into its frame or its tally
}

// Opening is the cost of a before whose frame is not yet open.
type Opening struct {
	Nanos int64
	Err   string
}

// TakeOpening returns and clears the cost of the before that has just run.
func (s *Slip) TakeOpening() Opening {
	o := s.open
	s.open = Opening{}
	return o
}

// Stop is one stage on a slip.
type Stop struct {
	Name      string `json:"name"`
	Order     int    `json:"order"`
	Before    bool   `json:"before,omitempty"`
	After     bool   `json:"after,omitempty"`
	Mandatory bool   `json:"mandatory,omitempty"`
	Finally   bool   `json:"finally,omitempty"` // its after runs also when the call's time is over
	Keep      bool   `json:"keep,omitempty"`    // may say Again: the request is kept when it is passed
	Skippable bool   `json:"skippable,omitempty"`
	// Filter and Rewrites tell the model endpoint about streams: a stage that rewrites replies and has no chunk
	// filter holds the deltas back.
	Filter   bool `json:"filter,omitempty"`
	Rewrites bool `json:"rewrites,omitempty"`
	// Tally adds up the closed frames of this stage; the receiver of the terminal reply adds it to the statistics, so
	// each call counts once.
	Tally Tally `json:"tally,omitzero"`
}

// Frame is the open invocation of one stage.
type Frame struct {
	Stop    int             `json:"stop"`
	Attempt int             `json:"attempt"`
	State   json.RawMessage `json:"state,omitempty"`
	Nanos   int64           `json:"ns,omitempty"`
	Err     string          `json:"err,omitempty"`
}

// Tally counts closed frames. One invocation is one frame closed; a redelivery closes none.
type Tally struct {
	Count  int64  `json:"n,omitempty"`
	Nanos  int64  `json:"ns,omitempty"`
	Errors int64  `json:"errs,omitempty"`
	Err    string `json:"err,omitempty"`
}

// Clone returns a copy that shares no mutable state.
func (s Slip) Clone() Slip {
	s.Stops = slices.Clone(s.Stops)
	s.Frames = slices.Clone(s.Frames)
	s.Path = slices.Clone(s.Path)
	return s
}

// Frame returns the open frame of the named stage, if the call is inside it. Chunk filters read the private state of
// their stage here.
func (s Slip) Frame(stage string) (Frame, bool) {
	for i := len(s.Frames) - 1; i >= 0; i-- {
		if s.Stops[s.Frames[i].Stop].Name == stage {
			return s.Frames[i], true
		}
	}
	return Frame{}, false
}

// Spent reports whether the target has run as often as Runs allows.
func (s Slip) Spent() bool { return s.Runs > 0 && s.Tries >= s.Runs }

// AtTarget reports whether the target runs next.
func (s Slip) AtTarget() bool { return !s.Back && s.At >= len(s.Stops) }

// Done reports whether the call has passed its outermost after.
func (s Slip) Done() bool { return s.Back && s.At < 0 }

// Stage names the stage and phase that has the call now; empty at the target and at the end.
func (s Slip) Stage() (name string, phase Phase) {
	if s.At < 0 || s.At >= len(s.Stops) {
		return "", ""
	}
	if s.Back {
		return s.Stops[s.At].Name, After
	}
	return s.Stops[s.At].Name, Before
}

// Where says in words where the call is, for error texts.
func (s Slip) Where() string {
	switch name, phase := s.Stage(); {
	case name != "":
		return string(phase) + " of stage " + name
	case s.Back:
		return "the reply"
	case s.At < 0:
		return "the entry"
	default:
		return "the target"
	}
}

// Phase is a side of a stage.
type Phase string

// The phases of a stage.
const (
	Before Phase = "before"
	After  Phase = "after"
)

func (s *Slip) top() *Frame {
	if !s.Back || len(s.Frames) == 0 {
		return nil
	}
	return &s.Frames[len(s.Frames)-1]
}

func (s *Slip) state() json.RawMessage {
	if f := s.top(); f != nil {
		return f.State
	}
	return s.Scratch
}

func (s *Slip) setState(raw json.RawMessage) {
	if f := s.top(); f != nil {
		f.State = raw
		return
	}
	s.Scratch = raw
}

func (s *Slip) attempt() int {
	if f := s.top(); f != nil {
		return f.Attempt
	}
	return 1
}

// Spend adds running time and, if err is not empty, an error to the phase that has just run. It is called once for
// each phase, before the slip advances.
func (s *Slip) Spend(d time.Duration, err string) {
	if f := s.top(); f != nil {
		f.Nanos += int64(d)
		if err != "" {
			f.Err = err
		}
		return
	}
	if s.At >= 0 && s.At < len(s.Stops) {
		s.open = Opening{Nanos: int64(d), Err: err}
	}
}
