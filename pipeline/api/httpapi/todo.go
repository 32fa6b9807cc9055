package httpapi

import (
	"context"
	"net/http"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// TodoLists reads and edits the lists of sessions. Values marshal to JSON; errors are faults.
type TodoLists struct {
	Load func(ctx context.Context, tenant, session string) (any, error)
	Edit func(ctx context.Context, tenant, session string, edit []byte) (any, error)
}

// todoFace serves the lists of sessions.
type todoFace struct {
	*common
	todo *TodoLists // nil: there are none
}

// add mounts the todo list of a session: GET reads it, PUT edits it. The tenant is the key's, so no tenant reaches
// the list of another, and a session without a list has an empty one. A session whose name cannot be part of a path,
// because it contains a slash, is named by the header Shallot-Session at /v1/todo.
func (s *todoFace) add(t *router) {
	if s.todo == nil {
		return
	}
	m := methods{
		http.MethodGet: s.caller(func(w http.ResponseWriter, r *http.Request, id api.Identity) {
			v, err := s.todo.Load(r.Context(), id.Tenant, todoSession(r))
			s.answerTodo(w, r, v, err)
		}),
		http.MethodPut: s.caller(func(w http.ResponseWriter, r *http.Request, id api.Identity) {
			body, fault := s.controlBody(w, r)
			if fault != nil {
				writeFault(w, fault)
				return
			}
			v, err := s.todo.Edit(r.Context(), id.Tenant, todoSession(r), body)
			s.answerTodo(w, r, v, err)
		}),
	}
	t.add("/v1/todo/{session}", m)
	t.add("/v1/todo", m)
}

func todoSession(r *http.Request) string {
	if s := r.PathValue("session"); s != "" {
		return s
	}
	return r.Header.Get("Shallot-Session")
}

func (s *todoFace) answerTodo(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, v)
}
