package approval

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// The decisions that a person can make.
const (
	Approve = "approve" // the tool runs with the arguments that were shown
	Edit    = "edit"    // the tool runs with other arguments
	Reject  = "reject"  // the tool does not run
	Respond = "respond" // the tool does not run; what the person writes is the result
)

var decisions = []string{Approve, Edit, Reject, Respond}

// Question is what a person is shown, and what their decision is checked against.
type Question struct {
	Tool        string          `json:"tool"`
	Version     string          `json:"version,omitempty"`
	Description string          `json:"description,omitempty"`
	Arguments   json.RawMessage `json:"arguments,omitempty"`
	// Bytes and Preview replace arguments that are too long to be shown: their size and their beginning.
	Bytes     int      `json:"arguments_bytes,omitempty"`
	Preview   string   `json:"arguments_preview,omitempty"`
	Policy    string   `json:"policy"`
	Note      string   `json:"note,omitempty"`
	Decisions []string `json:"decisions"`
	// Session, Run, User and Agent say for whom the call is made.
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	User    string `json:"user,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// Expires is how long the question waits.
	Expires time.Duration `json:"-"`
	// Hash is the fingerprint of the tool as it was shown.
	Hash string `json:"hash"`
}

func newQuestion(p Policy, d *tool.Definition, c *messages.Call) *Question {
	q := &Question{
		Tool: d.Name, Version: d.Version, Description: messages.Clip(d.Description, maxPreview), Arguments: tool.Arguments(c),
		Policy: p.label(), Decisions: p.Decisions,
		Session: c.Session, Run: c.Run, User: c.User, Agent: c.Agent, Expires: p.Expires, Hash: d.Fingerprint(),
	}
	if n := len(q.Arguments); n > maxShown {
		q.Bytes, q.Preview, q.Arguments = n, strings.ToValidUTF8(string(q.Arguments[:maxPreview]), ""), nil
	}
	return q
}

// What a question shows, which is stored and listed and has to be read by a person.
const (
	maxShown   = 64 << 10 // bytes of the arguments
	maxPreview = 4096     // characters of the description, and bytes of arguments that are longer
)

// Decision is what a person decided.
type Decision struct {
	Decision  string          `json:"decision"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // of edit
	Content   json.RawMessage `json:"content,omitempty"`   // of respond: any JSON
	Reason    string          `json:"reason,omitempty"`
	// By, At and Hash say who decided, when, and about which form of the tool. The process that takes the decision sets
	// them; the sender cannot.
	By   string    `json:"by,omitempty"`
	At   time.Time `json:"at,omitzero"`
	Hash string    `json:"hash,omitempty"`
}

// maxReason bounds the reason of a decision, in bytes.
const maxReason = 4096

// Read reads a decision as it came from outside: an object or the bare word. ok is false if it decides nothing: null,
// or an object whose decision is null. The sender cannot set who decided and when.
func Read(raw []byte) (d Decision, ok bool, err error) {
	raw = bytes.TrimSpace(raw)
	if word, is := rawjson.IsString(raw); is {
		return Decision{Decision: word}, true, nil
	}
	if rawjson.IsNull(raw) {
		return d, false, nil
	}
	in := struct {
		Decision  *string         `json:"decision"`
		Arguments json.RawMessage `json:"arguments"`
		Content   json.RawMessage `json:"content"`
		Reason    string          `json:"reason"`
	}{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err = tool.PlainKeys(raw); err == nil {
		err = dec.Decode(&in)
	}
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("more than one JSON value")
		}
	}
	switch {
	case err != nil:
		return d, false, invalid("decision", `the decision cannot be read: %s; send {"decision": "approve"}, `+
			`with "arguments" for edit, "content" for respond, "reason" for reject`, strings.TrimPrefix(err.Error(), "json: "))
	case in.Decision == nil:
		return d, false, nil
	case len(in.Reason) > maxReason:
		return d, false, invalid("reason", "the reason has %d bytes; at most %d", len(in.Reason), maxReason)
	}
	return Decision{Decision: *in.Decision, Arguments: in.Arguments, Content: in.Content, Reason: in.Reason}, true, nil
}

func invalid(param, format string, args ...any) error {
	return messages.NewFault(messages.InvalidRequest, format, args...).At(param).From("approval")
}

// Check checks a decision against the question: whether the question allows it, whether it has what it needs, whether
// the tool is still the one that was shown, and whether edited arguments are good. It sets the decision's hash, and
// arguments as parse returns them. A refused decision changes nothing: the call keeps waiting. now is the tool as it is
// now, nil if there is none any more.
func (q *Question) Check(
	d *Decision, now *tool.Definition, parse func(*tool.Definition, []byte) (json.RawMessage, *messages.Fault),
) error {
	if !slices.Contains(q.Decisions, d.Decision) {
		return invalid("decision", "%q may not be decided for '%s'; allowed: %s",
			d.Decision, q.Tool, strings.Join(q.Decisions, ", "))
	}
	d.Hash = q.Hash
	if d.Decision != Edit && len(d.Arguments) > 0 {
		return invalid("arguments", "only the decision edit takes arguments, not %s", d.Decision)
	}
	switch d.Decision {
	case Respond:
		if len(d.Content) == 0 {
			return invalid("content", "the decision respond needs content, which the caller gets as the result")
		}
	case Approve, Edit:
		if now == nil || now.Fingerprint() != q.Hash {
			return messages.NewFault(messages.Conflict, "the tool '%s' has changed since the question was asked, "+
				"so the call cannot run any more; reject it or respond", q.Tool).At("tool").From("approval")
		}
		if d.Decision == Approve {
			return nil
		}
		if len(d.Arguments) == 0 || d.Arguments[0] != '{' {
			return invalid("arguments", "the decision edit needs arguments: the JSON object that the tool gets instead")
		}
		raw, fault := parse(now, d.Arguments)
		if fault != nil {
			return fault
		}
		d.Arguments = raw
	}
	return nil
}

// Said is the text that a model reads after a person rejected the call.
func (d Decision) Said(tool string) string {
	text := fmt.Sprintf("The call of '%s' was rejected by %s and was not run.", tool, d.who())
	if d.Reason != "" {
		text += " Reason: " + d.Reason
	}
	return text
}

func (d Decision) who() string {
	if d.By == "" {
		return "a person"
	}
	return d.By
}
