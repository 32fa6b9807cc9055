package messages

import "time"

// TargetRun is what whoever ran a target says of the run, in [NoteTargetRun].
type TargetRun struct {
	// Micros is how long the target ran, in microseconds.
	Micros int64 `json:"us,omitempty"`
	// Provider and Model are who was asked, and for which model.
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// FirstMicros is when the provider's first token came, in microseconds from its beginning; 0 where the reply was not
	// streamed.
	FirstMicros int64 `json:"firstUs,omitempty"`
}

// NoteTargetTook completes the note of a run that has just ended.
func (c *Call) NoteTargetTook(took time.Duration) {
	var r TargetRun
	c.Noted(NoteTargetRun, &r)
	r.Micros = took.Microseconds()
	c.Note(NoteTargetRun, r)
}

// TakeTargetRun returns the note of the last run, and removes it.
func (c *Call) TakeTargetRun() (r TargetRun) {
	c.Noted(NoteTargetRun, &r)
	c.Unnote(NoteTargetRun)
	return r
}
