package calls

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Query says which calls are looked for. Empty fields match all.
type Query struct {
	Tenant string
	// ID is any id: of a call, a request, a session, a run, a trace.
	ID      string
	Request string
	Session string
	Run     string
	Parent  string
	Kind    messages.Kind
	Model   string // as asked for, or as answered
	Tool    string
	// State is one of the states; Outcome is "ok", the code of a fault, or "fault" for any of them.
	State, Outcome string
	// Since and Until bound the time of the end; a call that runs is there as long as Until is not past.
	Since, Until time.Time
	// Limit is how many are returned, 50 if it is 0, at most 500. Before is the Next of an earlier page.
	Limit  int
	Before string
}

// AnyFault is the outcome of every call that has a fault.
const AnyFault = "fault"

// Page is a part of the list, the newest first: calls that run, then those that ended last.
type Page struct {
	Calls []Story `json:"data"`
	// Next is where the list goes on; empty at its end. A page may have fewer calls than asked for and a Next: then many
	// were looked through and few found.
	Next string `json:"next,omitempty"`
	// Silent says that some process did not say in time what runs there.
	Silent bool `json:"incomplete,omitempty"`
}

// Matches reports whether a story is looked for.
func (q Query) Matches(s Story) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	by := Answerer{}
	if s.By != nil {
		by = *s.By
	}
	return is(q.Tenant, s.Tenant) && is(string(q.Kind), string(s.Kind)) && is(q.Request, s.Request) && is(q.Session, s.Session) &&
		is(q.Run, s.Run) && is(q.Parent, s.Parent) && is(q.Tool, s.Tool) && is(q.State, s.State) &&
		(q.Model == "" || q.Model == s.Model || q.Model == by.Model) &&
		(is(q.Outcome, s.Outcome) || q.Outcome == AnyFault && s.Outcome != OK && s.Outcome != "") &&
		(q.ID == "" || slices.Contains([]string{s.Call, s.Request, s.Session, s.Run, s.Trace}, q.ID)) &&
		(q.Until.IsZero() || s.Ended.IsZero() || !s.Ended.After(q.Until)) &&
		(q.Since.IsZero() || s.Ended.IsZero() || !s.Ended.Before(q.Since))
}

// News is one event of the feed.
type News struct {
	// What is the kind of event: accepted, hop, target, end, part, held, answered, switch, lost.
	What string
	Data json.RawMessage
}
