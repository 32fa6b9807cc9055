package messages

import (
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

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

// AppendJSON implements rawjson.Appender.
func (r TargetRun) AppendJSON(b []byte) []byte {
	w := rawjson.Writer{B: append(b, '{')}
	w.Number("us", r.Micros)
	w.Text("provider", r.Provider)
	w.Text("model", r.Model)
	w.Number("firstUs", r.FirstMicros)
	w.Close('}')
	return w.B
}

// ReadField implements [FieldReader].
func (r *TargetRun) ReadField(key string, raw []byte) {
	switch key {
	case "us":
		r.Micros, _ = rawjson.Int(raw)
	case "provider":
		r.Provider, _ = rawjson.IsString(raw)
	case "model":
		r.Model, _ = rawjson.IsString(raw)
	case "firstUs":
		r.FirstMicros, _ = rawjson.Int(raw)
	}
}
