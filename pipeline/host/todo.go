package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/todolist"
)

// Todo is the list of a session as it is shown outside.
type Todo struct {
	Session  string          `json:"session"`
	Items    []todolist.Item `json:"items"`
	Revision int64           `json:"revision"`
}

// TodoLists are the todo lists of sessions, as the faces show them.
type TodoLists struct{ store pipeline.Store }

// Load returns the list of a session of the tenant; a session without one has an empty list.
func (t *TodoLists) Load(ctx context.Context, tenant, session string) (any, error) {
	if err := checkSession(session); err != nil {
		return Todo{}, err
	}
	l, err := todolist.Load(ctx, t.store, tenant, session)
	return show(session, l, err)
}

// Edit applies an edit, {"items": [{"id", "title", "status"}], "replace", "revision"}, and returns the list as it
// is then. What is wrong with the edit is a *messages.Fault.
func (t *TodoLists) Edit(ctx context.Context, tenant, session string, edit []byte) (any, error) {
	if err := checkSession(session); err != nil {
		return Todo{}, err
	}
	var e todolist.Edit
	if err := strict(edit, &e); err != nil {
		return Todo{}, err
	}
	l, err := todolist.Change(ctx, t.store, tenant, session, e)
	return show(session, l, err)
}

func show(session string, l todolist.List, err error) (Todo, error) {
	if err != nil {
		if _, ok := errors.AsType[*messages.Fault](err); !ok {
			err = messages.NewFault(messages.StoreUnavailable, "%v", err).From("entry")
		}
		return Todo{}, err
	}
	out := Todo{Session: session, Items: l.Items, Revision: l.Revision}
	if out.Items == nil {
		out.Items = []todolist.Item{}
	}
	return out, nil
}

// checkSession holds a session that comes beside a body to the rule for the header.
func checkSession(session string) error {
	if !api.Session(session) {
		return api.SessionFault("session", "session")
	}
	return nil
}

// strict reads one JSON object and refuses keys that v does not have: a mistyped key would change nothing, silently.
func strict(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("more than one JSON value")
	}
	why := strings.TrimPrefix(err.Error(), "json: ")
	return messages.NewFault(messages.InvalidRequest, "the body cannot be read: %s", why).From("entry")
}

// todoForm is a session, bare or in an object; Shallot-Session may name it instead.
const todoForm = natsapi.Form(`{"type":["object","string","null"],"additionalProperties":false,` +
	`"properties":{"session":{"type":"string"}}}`)

// todoEdit is an edit with its session.
type todoEdit struct {
	Session string `json:"session,omitempty"` // or the header Shallot-Session
	todolist.Edit
}

// verbs are the subjects of the todo lists. The session stands in the body or in Shallot-Session; a
// bare session name is a body for get.
func (t *TodoLists) verbs() []natsapi.Verb {
	return []natsapi.Verb{
		{Name: "todo.get", About: "the todo list of a session", Request: todoForm, Reply: Todo{}, Serve: t.get},
		{Name: "todo.put", About: "changes the todo list of a session", Request: todoEdit{}, Reply: Todo{}, Serve: t.put},
	}
}

func (t *TodoLists) get(ctx context.Context, a natsapi.Query) (any, error) {
	ask := struct {
		Session string `json:"session"`
	}{a.Session}
	switch body := bytes.TrimSpace(a.Body); {
	case len(body) > 0 && body[0] == '{':
		if err := strict(body, &ask); err != nil {
			return nil, err
		}
	case len(body) > 0:
		ask.Session = string(body)
	}
	return t.Load(ctx, a.Tenant, ask.Session)
}

func (t *TodoLists) put(ctx context.Context, a natsapi.Query) (any, error) {
	session := a.Session
	if name, ok := rawjson.FieldString(a.Body, "session"); ok {
		session = name
	}
	return t.Edit(ctx, a.Tenant, session, rawjson.DropField(a.Body, "session"))
}
