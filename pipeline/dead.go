package pipeline

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// DeadLetters is what operators can do with messages that nobody could carry out. The bus implements it; its errors are
// faults. A letter of another tenant than the one that is named is not found; an empty tenant means all. by says who
// asked, for the audit. It is safe for concurrent use.
type DeadLetters interface {
	// DeadLetters returns a page of the letters that the filter lets through, the oldest first.
	DeadLetters(ctx context.Context, f DeadFilter) (DeadPage, error)
	// DeadLetter returns one letter with what it holds.
	DeadLetter(ctx context.Context, tenant string, sequence uint64) (DeadLetter, error)
	// Redrive puts the calls of the letters into the queue again, each as a new call, and deletes the letters. A letter
	// that cannot be redriven stays, and is named with the reason. It may be called twice and by many at once: a letter
	// is one new call at most. Work that must not run twice is redriven only where it is proved that it has not begun.
	Redrive(ctx context.Context, f DeadFilter, by string) (DeadDone, error)
	// DeleteDead deletes the letters.
	DeleteDead(ctx context.Context, f DeadFilter, by string) (DeadDone, error)
}

// DeadFilter chooses dead letters; each field that is set must fit. To redrive or delete, something must be set, or
// All.
type DeadFilter struct {
	Sequence uint64    `json:"sequence,omitempty"` // of one letter
	Tenant   string    `json:"tenant,omitempty"`
	Kind     string    `json:"kind,omitempty"`
	Call     string    `json:"call,omitempty"`
	Reason   string    `json:"reason,omitempty"` // a part of it, in any case
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`
	All      bool      `json:"all,omitempty"`   // every letter is meant
	After    uint64    `json:"after,omitempty"` // begin behind this sequence: Next of the page before
	Limit    int       `json:"limit,omitempty"` // letters of a page; 100, at most 1,000
}

// DeadLetter is a message that nobody could carry out.
type DeadLetter struct {
	Sequence uint64    `json:"sequence"` // its number, which never changes
	Time     time.Time `json:"time"`
	Reason   string    `json:"reason"`
	Subject  string    `json:"subject,omitempty"` // where the message was
	// Tenant, Kind and Call are empty for what is not a stored call.
	Tenant     string        `json:"tenant,omitempty"`
	Kind       messages.Kind `json:"kind,omitempty"`
	Call       string        `json:"call,omitempty"`
	Deliveries int           `json:"deliveries,omitempty"`
	Bytes      int           `json:"bytes"`
	// Begun says whether work that must not run twice had begun: no, or empty where that was not proved.
	Begun string `json:"begun,omitempty"`
	// Message is the stored call, or the text of what could not be read; only where one letter is asked for.
	Message json.RawMessage `json:"message,omitempty"`
}

// DeadPage is a part of the list. Next is After of the following page; 0 after the last.
type DeadPage struct {
	Letters []DeadLetter `json:"data"`
	Next    uint64       `json:"next,omitempty"`
}

// DeadDone says what came of an action on dead letters. Next is After of the rest; 0 if nothing is left to look at.
type DeadDone struct {
	Done    []DeadDeed `json:"done"`
	Refused []DeadDeed `json:"refused"`
	Next    uint64     `json:"next,omitempty"`
}

// DeadDeed is what came of one letter.
type DeadDeed struct {
	Sequence uint64 `json:"sequence"`
	Call     string `json:"call,omitempty"`   // of the letter
	As       string `json:"as,omitempty"`     // the new call, whose result is asked for by this id
	Reason   string `json:"reason,omitempty"` // why it was refused
}
