package calls

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	return is(q.Tenant, s.Tenant) && is(string(q.Kind), string(s.Kind)) && is(q.Request, s.Request) &&
		is(q.Session, s.Session) &&
		is(q.Run, s.Run) && is(q.Parent, s.Parent) && is(q.Tool, s.Tool) &&
		is(q.State, s.State) &&
		(q.Model == "" || q.Model == s.Model || q.Model == by.Model) &&
		(is(q.Outcome, s.Outcome) || q.Outcome == AnyFault && s.Outcome != OK && s.Outcome != "") &&
		(q.ID == "" || slices.Contains([]string{s.Call, s.Request, s.Session, s.Run, s.Trace}, q.ID)) &&
		(q.Until.IsZero() || s.Ended.IsZero() || !s.Ended.After(q.Until)) &&
		(q.Since.IsZero() || s.Ended.IsZero() || !s.Ended.Before(q.Since))
}

// News is one event of the feed.
type News struct {
	// What is the kind of event: accepted, hop, target, end, part, held, answered, switch, lost. It is empty for a sign of
	// life.
	What string
	Data json.RawMessage
}

// Lost is the news of events that were not told, because there were more than the reader takes: {"events": <count>}.
const Lost = "lost"

// ParseQuery reads a query as the faces get it: by the names of its fields in lower case. Times are RFC 3339, or how
// long ago: 15m. A name that is not known, or a value that cannot be read, is the fault invalid_request.
func ParseQuery(fields map[string]string) (q Query, err error) {
	texts := map[string]*string{
		"id":      &q.ID,
		"request": &q.Request,
		"session": &q.Session,
		"run":     &q.Run,
		"parent":  &q.Parent,
		"kind":    (*string)(&q.Kind),
		"model":   &q.Model,
		"tool":    &q.Tool,
		"state":   &q.State,
		"outcome": &q.Outcome,
		"before":  &q.Before,
	}
	times := map[string]*time.Time{"since": &q.Since, "until": &q.Until}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := fields[name]
		switch {
		case value == "":
		case texts[name] != nil:
			*texts[name] = value
		case times[name] != nil:
			if *times[name], err = when(value); err != nil {
				return q, bad(name, "%q is neither a time like 2026-01-02T15:04:05Z nor a duration like 15m", value)
			}
		case name == "limit":
			if q.Limit, err = strconv.Atoi(value); err != nil || q.Limit < 1 || q.Limit > MostRows {
				return q, bad(name, "%q is not a number from 1 to %d", value, MostRows)
			}
		default:
			known := slices.Concat(slices.Collect(maps.Keys(texts)), []string{"since", "until", "limit"})
			slices.Sort(known)
			return q, bad(name, "there is no such filter; known: %s", strings.Join(known, ", "))
		}
	}
	return q, q.check()
}

// MostRows is how many calls a page has at most.
const MostRows = 500

func when(value string) (time.Time, error) {
	if ago, err := time.ParseDuration(value); err == nil {
		return time.Now().Add(-ago), nil
	}
	return time.Parse(time.RFC3339, value)
}

func bad(name, format string, args ...any) error {
	return messages.NewFault(messages.InvalidRequest, name+": "+format, args...).At(name).From("entry")
}

// check refuses words that are not what a field can be.
func (q Query) check() error {
	if states := []string{Running, Queued, Held, Moved, Ended}; q.State != "" && !slices.Contains(states, q.State) {
		return bad("state", "%q; known: %s", q.State, strings.Join(states, ", "))
	}
	if q.Kind != "" && !q.Kind.Valid() {
		return bad("kind", "%q; known: model, tool, agent", string(q.Kind))
	}
	if q.Outcome != "" && q.Outcome != OK && q.Outcome != AnyFault && !messages.Code(q.Outcome).Known() {
		return bad("outcome", "%q is neither ok, nor fault for any fault, nor the code of a fault", q.Outcome)
	}
	return nil
}
