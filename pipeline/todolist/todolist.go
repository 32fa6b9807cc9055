// Package todolist is the todo list of a session as the store holds it. The stage todo-list writes it for a model; the
// APIs show and edit it for people. APIs must not import stages, so this package is below both.
package todolist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Bounds on one session's list.
const (
	maxItems   = 200                 // items of a list
	MaxTitle   = 500                 // characters of a title
	MaxApplied = 128                 // calls that are remembered as applied
	KeptFor    = 30 * 24 * time.Hour // since the last change: a session that ends says nothing
)

// Status is the state of an item. Models and API callers read and write these words, so they must not change.
type Status string

// The states.
const (
	Pending    Status = "PENDING"
	InProgress Status = "IN_PROGRESS"
	Completed  Status = "COMPLETED"
	Cancelled  Status = "CANCELLED"
)

// StatusNames lists the states, for error texts.
const StatusNames = "PENDING, IN_PROGRESS, COMPLETED, CANCELLED"

// Valid reports whether s is one of the four states.
func (s Status) Valid() bool {
	return s == Pending || s == InProgress || s == Completed || s == Cancelled
}

// Item is one line of a list.
type Item struct {
	ID      int64     `json:"id"`
	Title   string    `json:"title"`
	Status  Status    `json:"status"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
}

// List is the list of one session: what the store todo holds under messages.Key(tenant, session).
type List struct {
	Items []Item `json:"items"` // in the order of their ids
	Next  int64  `json:"next"`  // the id of the next item; ids are never used twice
	// Applied names the calls whose directives are already in the list, newest last, so that a redelivered after
	// changes nothing.
	Applied []string `json:"applied,omitempty"`
	// Revision counts the changes. An edit may require the revision that its author saw.
	Revision int64 `json:"revision"`
}

// Find returns the item with the id, or nil.
func (l *List) Find(id int64) *Item {
	for i := range l.Items {
		if l.Items[i].ID == id {
			return &l.Items[i]
		}
	}
	return nil
}

// Add appends an item and returns its id. It fails if the list is full.
func (l *List) Add(title string, status Status, now time.Time) (int64, error) {
	if len(l.Items) >= maxItems {
		return 0, fmt.Errorf("the list is full (%d items)", maxItems)
	}
	l.Next = max(l.Next, 1)
	for _, it := range l.Items {
		l.Next = max(l.Next, it.ID+1)
	}
	id := l.Next
	l.Next++
	l.Items = append(l.Items, Item{ID: id, Title: title, Status: status, Created: now, Updated: now})
	return id, nil
}

// Title makes a title one line: control characters and line ends become spaces, and it is cut to 500 characters.
func Title(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s))
	return strings.TrimSpace(Clip(s, MaxTitle-1))
}

// Load returns the list of a session. A session without a list has an empty one. An error means that the store did not
// answer or that the stored value is not a list.
func Load(ctx context.Context, store pipeline.Store, tenant, session string) (List, error) {
	var l List
	e, err := store.Get(ctx, messages.Key(tenant, session))
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		return List{Items: []Item{}, Next: 1}, nil
	case err != nil:
		return l, fmt.Errorf("todo: list of session %q: %w", session, err)
	}
	if err := json.Unmarshal(e.Value, &l); err != nil {
		return l, fmt.Errorf("todo: list of session %q: %w", session, err)
	}
	return l, nil
}

// Edit is a change that a person makes through an API.
type Edit struct {
	// Items are the items to write: id 0 adds an item (PENDING unless a status is given), another id changes the given
	// fields of that item.
	Items []Put `json:"items"`
	// Replace removes the items that Items does not name.
	Replace bool `json:"replace,omitempty"`
	// Revision, if not 0, must be the list's revision; otherwise nothing changes and the fault is conflict.
	Revision int64 `json:"revision,omitempty"`
}

// Put is one item of an edit.
type Put struct {
	ID     int64  `json:"id,omitempty"`
	Title  string `json:"title,omitempty"`
	Status Status `json:"status,omitempty"`
}

// Change makes all of an edit or nothing, and returns the new list. If the edit is wrong, the error is a
// *messages.Fault (invalid_request, not_found, conflict); any other error comes from the store. Changes that a call
// makes at the same time are kept, unless Replace drops them.
func Change(ctx context.Context, store pipeline.Store, tenant, session string, edit Edit) (List, error) {
	if session == "" {
		return List{}, messages.NewFault(messages.InvalidRequest, "todo: an edit needs a session").At("session")
	}
	l, err := pipeline.Change(ctx, store, messages.Key(tenant, session), KeptFor, func(l *List) (bool, error) {
		if edit.Revision != 0 && edit.Revision != l.Revision {
			return false, messages.NewFault(messages.Conflict,
				"todo: the list is at revision %d, not %d; read it again and repeat the edit", l.Revision,
				edit.Revision).At("revision")
		}
		return true, edit.apply(l, time.Now().UTC())
	})
	if _, fault := errors.AsType[*messages.Fault](err); err != nil && !fault {
		err = fmt.Errorf("todo: edit of session %q: %w", session, err)
	}
	return l, err
}

func (e Edit) apply(l *List, now time.Time) error {
	named := map[int64]bool{}
	for i, p := range e.Items {
		at := func(field, format string, args ...any) error {
			return messages.NewFault(messages.InvalidRequest, "todo: "+format, args...).At(fmt.Sprintf("items[%d].%s",
				i, field))
		}
		title := Title(p.Title)
		switch {
		case p.Status != "" && !p.Status.Valid():
			return at("status", "status %q is none of %s", Clip(string(p.Status), 40), StatusNames)
		case utf8.RuneCountInString(p.Title) > MaxTitle:
			return at("title", "a title has at most %d characters", MaxTitle)
		case title == "" && (p.ID == 0 || p.Title != ""):
			return at("title", "the title is empty")
		}
		if p.ID == 0 {
			if p.Status == "" {
				p.Status = Pending
			}
			id, err := l.Add(title, p.Status, now)
			if err != nil {
				return at("id", "%v; finish or drop some first", err)
			}
			named[id] = true
			continue
		}
		it := l.Find(p.ID)
		if it == nil {
			return messages.NewFault(messages.NotFound, "todo: there is no item %d",
				p.ID).At(fmt.Sprintf("items[%d].id", i))
		}
		if title != "" {
			it.Title = title
		}
		if p.Status != "" {
			it.Status = p.Status
		}
		it.Updated = now
		named[p.ID] = true
	}
	if e.Replace {
		l.Items = slices.DeleteFunc(l.Items, func(it Item) bool { return !named[it.ID] })
	}
	if l.Items == nil {
		l.Items = []Item{}
	}
	l.Revision++
	return nil
}

// Clip cuts a text to at most n characters.
func Clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}
