package messages

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// WireVersion is the version of the wire form that this build reads and writes.
const WireVersion = 1

// Kind says which onion a call passes: model stages never see a tool call, and tool stages never see a model call.
type Kind string

// The kinds of call.
const (
	Model Kind = "model"
	Tool  Kind = "tool"
	Agent Kind = "agent"
)

// Valid reports whether k is one of the closed list of kinds.
func (k Kind) Valid() bool { return k == Model || k == Tool || k == Agent }

// Wire names the API whose bodies a model call has, from the caller to the stages and back.
type Wire string

// The wires.
const (
	ChatWire      Wire = "chat"      // OpenAI chat completions
	ResponsesWire Wire = "responses" // OpenAI and Open Responses
	MessagesWire  Wire = "messages"  // Anthropic Messages
	// EmbeddingsWire is that of OpenAI's embeddings, which only providers of it answer.
	EmbeddingsWire Wire = "embeddings"
)

// Valid reports whether w is one of the closed list of wires, or empty.
func (w Wire) Valid() bool {
	return w == "" || w == ChatWire || w == ResponsesWire || w == MessagesWire || w == EmbeddingsWire
}

// Or returns the wire, ChatWire where it is empty.
func (w Wire) Or() Wire {
	if w == "" {
		return ChatWire
	}
	return w
}

// Names of the bodies that every call may have. A stage that may say Again also owns KeptPrefix + its name.
const (
	RequestBody = "request"
	ReplyBody   = "reply"
	KeptPrefix  = "kept."
)

// Call is one exchange on its way through the onion. The exported fields are line 1 of the wire form. The bodies are
// reached by methods, because they are kept verbatim as bytes and shared between names. A Call is not safe for
// concurrent use.
type Call struct {
	ID   string `json:"id"` // UUIDv7
	Kind Kind   `json:"kind"`
	// Wire is how the bodies of a model call are written; empty, as in all calls of older builds, is ChatWire.
	Wire      Wire   `json:"wire,omitempty"`
	Tenant    string `json:"tenant"` // decided by the entry, never by a body
	Role      string `json:"role,omitempty"`
	Session   string `json:"session,omitempty"`
	Run       string `json:"run,omitempty"`
	User      string `json:"user,omitempty"`
	Agent     string `json:"agent,omitempty"`
	Tool      string `json:"tool,omitempty"` // the tool's name, for kind tool
	RequestID string `json:"request_id,omitempty"`
	// Models are patterns of the models that whoever makes the call may use, from their key's record; empty: all. They
	// bind the call itself and every call that is made for it.
	Models []string `json:"models,omitempty"`
	// IdempotencyKey is the caller's key, or empty. With a key the end of the call is always recorded.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Fingerprint is the hash of the request as accepted; it tells a retry from a different request under the same key.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Parent is the call whose stage or agent loop made this one; empty for calls from outside.
	Parent string `json:"parent,omitempty"`
	// Skip names stages that must not see this call although they are on: a summary call is not summarised.
	Skip []string `json:"skip,omitempty"`
	// Stream says that the caller reads the reply as chunks.
	Stream bool `json:"stream,omitempty"`
	// Cache is what the caller asked of the caches: "", "use", "refresh" or "off".
	Cache    string    `json:"cache,omitempty"`
	Explain  bool      `json:"explain,omitempty"`
	Accepted time.Time `json:"accepted"`
	Deadline time.Time `json:"deadline"`
	// Generation numbers the stored messages of a call; the only successor of g is g+1, so a second writer is refused.
	Generation uint64 `json:"generation"`
	Return     Return `json:"return,omitzero"`
	Trace      Trace  `json:"trace,omitzero"`
	Slip       Slip   `json:"slip"`
	Notes      Notes  `json:"notes,omitempty"`
	Fault      *Fault `json:"fault,omitempty"`
	bodies     bodies
}

// Return says where the reply or fault of a call goes.
type Return struct {
	// Inbox is the accepting process's inbox for this call: deltas and the final reply are sent there.
	Inbox string `json:"inbox,omitempty"`
	// Caller is the inbox of a plain NATS caller, for the courtesy reply when the accepting process is gone.
	Caller string `json:"caller,omitempty"`
	// Record asks for a result record even on the first delivery: submit, and calls with an idempotency key.
	Record bool `json:"record,omitempty"`
}

// Trace is the W3C trace context as the caller gave it, or a new root.
type Trace struct {
	Parent string `json:"parent,omitempty"`
	State  string `json:"state,omitempty"`
}

// MayModel reports whether whoever makes the call may use the model of that name.
func (c *Call) MayModel(name string) bool { return AnyGlob(c.Models, name) }

// NewCall returns a call with a fresh id and the given request body. Deadline, slip and the rest are the entry's to
// set. The body is compacted once, here; one that is not JSON travels as a JSON string and is marked text.
func NewCall(kind Kind, tenant string, request []byte) *Call {
	c := &Call{ID: NewID(), Kind: kind, Tenant: tenant, Accepted: time.Now().UTC()}
	c.SetRequest(request)
	return c
}

// NewID returns a call id: a UUIDv7, sortable by the time it was made.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// Request returns the request body as compact JSON (a text body is a JSON string). The caller must not change the
// bytes: they are shared. Nil if the call has no request.
func (c *Call) Request() []byte { return c.bodies.get(RequestBody) }

// Digest is the size of the body of that name and its SHA-256 in hexadecimal, which is empty if there is none. It is
// computed once for all who ask, so it must not be called concurrently.
func (c *Call) Digest(name string) (size int, sum string) { return c.bodies.digest(name) }

// SetRequest replaces the request. Requests that stages kept stay as they were.
func (c *Call) SetRequest(b []byte) { c.bodies.set(RequestBody, b) }

// Reply returns the reply body as compact JSON, or nil if there is none yet.
func (c *Call) Reply() []byte { return c.bodies.get(ReplyBody) }

// HasReply reports whether a reply is set.
func (c *Call) HasReply() bool { return c.bodies.has(ReplyBody) }

// SetReply sets the reply and clears the fault: a call ends with one or the other.
func (c *Call) SetReply(b []byte) {
	c.bodies.set(ReplyBody, b)
	c.Fault = nil
}

// SetReplyText sets the reply to exactly this text, even if it could be read as JSON: a text must not change once a
// part of it was shown. It clears the fault.
func (c *Call) SetReplyText(text string) {
	c.bodies.put(ReplyBody, textBody([]byte(text)))
	c.Fault = nil
}

// ReplyPlain returns the reply as a caller gets it: the bytes of a text, else the JSON. ok is false without a reply.
func (c *Call) ReplyPlain() (out string, text, ok bool) {
	if s, isText := c.ReplyText(); isText {
		return s, true, true
	}
	return string(c.Reply()), false, c.HasReply()
}

// DropReply removes the reply.
func (c *Call) DropReply() { c.bodies.drop(ReplyBody) }

// Fail sets the fault and drops the reply, so that a reader never finds both.
func (c *Call) Fail(f *Fault) {
	c.Fault = f
	c.bodies.drop(ReplyBody)
}

// RequestText returns the request as it came if it was not JSON; ok is false if it is JSON.
func (c *Call) RequestText() (text string, ok bool) { return c.bodies.text(RequestBody) }

// ReplyText returns the reply as it came if it was not JSON; ok is false if it is JSON.
func (c *Call) ReplyText() (text string, ok bool) { return c.bodies.text(ReplyBody) }

// Keep remembers the current request under the stage's name. It costs a reference, not a copy.
func (c *Call) Keep(stage string) { c.bodies.alias(KeptPrefix+stage, RequestBody) }

// Kept returns the request as it was when the call passed the stage, or nil.
func (c *Call) Kept(stage string) []byte { return c.bodies.get(KeptPrefix + stage) }

// Restore brings the kept request back and clears reply and fault, for the start of a new attempt. It reports whether a
// request was kept.
func (c *Call) Restore(stage string) bool {
	if !c.bodies.alias(RequestBody, KeptPrefix+stage) {
		return false
	}
	c.bodies.drop(ReplyBody)
	c.Fault = nil
	return true
}

// Forget drops what the stage kept.
func (c *Call) Forget(stage string) { c.bodies.drop(KeptPrefix + stage) }

// Outcome is a snapshot of a call's request, reply, kept requests and fault.
type Outcome struct {
	bodies bodies
	fault  *Fault
}

// Outcome takes a snapshot of the bodies and the fault. It copies references to bodies, not bytes.
func (c *Call) Outcome() Outcome { return Outcome{bodies: c.bodies.clone(), fault: c.Fault.clone()} }

// Ended reports whether there was a reply or a fault.
func (o Outcome) Ended() bool { return o.fault != nil || o.bodies.has(ReplyBody) }

// Reset restores bodies and fault from a snapshot, so that a failed phase leaves no half-made edit behind.
func (c *Call) Reset(o Outcome) { c.bodies, c.Fault = o.bodies, o.fault }

// State decodes the private state of the stage that has the call now, which its before set for its after. It reports
// whether there is any; the error is that of decoding into v.
func (c *Call) State(v any) (bool, error) {
	raw := c.Slip.state()
	if len(raw) == 0 {
		return false, nil
	}
	if err := decode(raw, v); err != nil {
		return false, fmt.Errorf("state: %w", err)
	}
	return true, nil
}

// SetState sets the private state of the stage that has the call now. No other stage reads it; it lives as long as the
// stage's frame and is kept through all attempts.
func (c *Call) SetState(v any) error {
	raw, err := encode(v)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	c.Slip.setState(raw)
	return nil
}

// encode is json.Marshal. What every call has writes itself, see [rawjson.Appender].
func encode(v any) ([]byte, error) {
	switch v := v.(type) {
	case rawjson.Appender:
		return v.AppendJSON(nil), nil
	case bool:
		return strconv.AppendBool(nil, v), nil
	case int:
		return strconv.AppendInt(nil, int64(v), 10), nil
	}
	return json.Marshal(v)
}

// FieldReader is a value that reads itself field by field, for what encode writes by way of an Appender: that takes a
// fraction of what reflection does. ReadField is called for each field of the object, whatever it is.
type FieldReader interface {
	ReadField(key string, raw []byte)
}

// decode is json.Unmarshal.
func decode(raw []byte, v any) error {
	r, ok := v.(FieldReader)
	if !ok || len(raw) == 0 || raw[0] != '{' {
		return json.Unmarshal(raw, v)
	}
	rawjson.EachField(raw, r.ReadField)
	return nil
}

// Attempt counts the attempts of the stage that has the call now: 1 at first, one more after each Again of this stage.
func (c *Call) Attempt() int { return c.Slip.attempt() }

// Clone returns a copy that shares no mutable state with c. Body bytes are shared, because they never change.
func (c *Call) Clone() *Call {
	d := *c
	d.Slip = c.Slip.Clone()
	d.Notes = c.Notes.clone()
	d.Skip = append([]string(nil), c.Skip...)
	d.Fault = c.Fault.clone()
	d.bodies = c.bodies.clone()
	return &d
}

// Past reports whether the call's deadline has passed at the given time. A call without one is never past.
func (c *Call) Past(now time.Time) bool { return !c.Deadline.IsZero() && !now.Before(c.Deadline) }

// Notes are values that all stages of one call share, by key. The keys in use are listed with the Note constants;
// callers see some of them, so their spelling is part of the API.
type Notes map[string]json.RawMessage

// Note sets a key of the shared context.
func (c *Call) Note(key string, v any) {
	raw, err := encode(v)
	if err != nil {
		return // values come from the program itself; a function or a channel cannot be noted
	}
	if c.Notes == nil {
		c.Notes = Notes{}
	}
	c.Notes[key] = raw
}

// Noted decodes a key of the shared context into v and reports whether it was there and of that shape.
func (c *Call) Noted(key string, v any) bool {
	raw, ok := c.Notes[key]
	return ok && decode(raw, v) == nil
}

// Flag reports whether a key of the shared context is the JSON value true.
func (c *Call) Flag(key string) bool { return string(c.Notes[key]) == "true" }

// Unnote removes a key of the shared context.
func (c *Call) Unnote(key string) { delete(c.Notes, key) }

func (n Notes) clone() Notes {
	if n == nil {
		return nil
	}
	out := make(Notes, len(n))
	for k, v := range n {
		out[k] = v
	}
	return out
}

// ReplyFrom puts the reply of another call in place as it is, without reading it, and clears a fault.
func (c *Call) ReplyFrom(d *Call) {
	if i, ok := d.bodies.names[ReplyBody]; ok {
		c.bodies.put(ReplyBody, d.bodies.lines[i])
		c.Fault = nil
	}
}
