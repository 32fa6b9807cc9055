package remotestage

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Version is the version of questions and answers.
const Version = 1

// question is what a program is asked, without the bodies, which follow verbatim.
type question struct {
	Version int             `json:"version"`
	Stage   string          `json:"stage"`
	Phase   messages.Phase  `json:"phase"`
	Key     string          `json:"key"`
	Call    asked           `json:"call"`
	State   json.RawMessage `json:"state,omitempty"`
	Fault   *fault          `json:"fault,omitempty"`
	// Text names the bodies that are text and not JSON; they are written as JSON strings.
	Text []string `json:"text,omitempty"`
}

// asked is what a program learns about the call. It never includes the caller's role, credentials or
// reply addresses.
type asked struct {
	ID         string         `json:"id"`
	Kind       messages.Kind  `json:"kind"`
	Wire       messages.Wire  `json:"wire,omitempty"` // of the bodies of a model call; chat where it is absent
	Tenant     string         `json:"tenant"`
	Session    string         `json:"session,omitempty"`
	Run        string         `json:"run,omitempty"`
	User       string         `json:"user,omitempty"`
	Agent      string         `json:"agent,omitempty"`
	Tool       string         `json:"tool,omitempty"`
	RequestID  string         `json:"request_id,omitempty"`
	Parent     string         `json:"parent,omitempty"`
	Stream     bool           `json:"stream,omitempty"`
	Attempt    int            `json:"attempt"`    // of this stage
	Hop        int            `json:"hop"`        // phases that ran before this one
	Generation uint64         `json:"generation"` // stored messages of the call
	Tries      int            `json:"tries"`      // runs of the target so far
	Accepted   *time.Time     `json:"accepted,omitempty"`
	Deadline   *time.Time     `json:"deadline,omitempty"`
	Notes      messages.Notes `json:"notes,omitempty"`
}

// fault is a call's failure in the form that programs read.
type fault struct {
	Code         messages.Code `json:"code"`
	Message      string        `json:"message"`
	Origin       string        `json:"origin,omitempty"`
	Param        string        `json:"param,omitempty"`
	Status       int           `json:"status"`
	Retryable    bool          `json:"retryable"`
	RetryAfterMS int64         `json:"retry_after_ms,omitempty"`
	Last         messages.Code `json:"last,omitempty"`
}

// question writes the question to the program: the call, then the bodies that the stage reads, byte for byte.
func (r *stage) question(c *messages.Call, phase messages.Phase) []byte {
	q := question{Version: Version, Stage: r.Name, Phase: phase, Key: r.key(c, phase), Call: asked{
		ID: c.ID, Kind: c.Kind, Wire: c.Wire, Tenant: c.Tenant, Session: c.Session, Run: c.Run, User: c.User,
		Agent: c.Agent, Tool: c.Tool, RequestID: c.RequestID, Parent: c.Parent, Stream: c.Stream, Attempt: c.Attempt(),
		Hop: c.Slip.Hops, Generation: c.Generation, Tries: c.Slip.Tries, Accepted: some(c.Accepted),
		Deadline: some(c.Deadline),
	}}
	for key, raw := range c.Notes {
		if hiddenNote(key) {
			continue
		}
		if q.Call.Notes == nil {
			q.Call.Notes = messages.Notes{}
		}
		q.Call.Notes[key] = raw
	}
	_, _ = c.State(&q.State)
	if f := c.Fault; f != nil {
		q.Fault = &fault{Code: f.Code, Message: f.Message, Origin: f.Origin, Param: f.Param, Status: f.HTTPStatus(),
			Retryable: f.Retryable(), RetryAfterMS: f.RetryAfter.Milliseconds(), Last: f.Last}
	}
	type body struct {
		name string
		raw  []byte
	}
	var bodies []body
	size := 0
	add := func(name string, raw []byte, text bool) {
		if !r.reads[name] || raw == nil {
			return
		}
		bodies = append(bodies, body{name, raw})
		size += len(raw) + len(name) + 4
		if text {
			q.Text = append(q.Text, name)
		}
	}
	_, text := c.RequestText()
	add(messages.RequestBody, c.Request(), text)
	_, text = c.ReplyText()
	add(messages.ReplyBody, c.Reply(), text)
	head := rawjson.Encode(q)
	out := make([]byte, 0, len(head)+size)
	out = append(out, head[:len(head)-1]...)
	for _, b := range bodies {
		out = append(out, `,"`+b.name+`":`...)
		out = append(out, b.raw...)
	}
	return append(out, '}')
}

func some(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// hiddenNote reports whether a note is internal, so that programs do not see it.
func hiddenNote(key string) bool {
	switch key {
	case messages.NoteUpstreamHeaders, messages.NoteUpstreamError, messages.NoteWireHeaders,
		messages.NoteStreamTail, "mcp.call", "stageTools":
		return true
	}
	return strings.HasPrefix(key, "bus.") || strings.HasPrefix(key, "stream.")
}

// reservedNote reports whether a program must not set a note, because the pipeline, the executors or the gateway trust
// it.
func reservedNote(key string) bool {
	switch key {
	case messages.NoteExecutorReached, messages.NoteStopper, messages.NoteEmptied:
		return true
	}
	for _, prefix := range []string{"tool.", "hold.", "mcp.", "approval."} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return hiddenNote(key)
}
