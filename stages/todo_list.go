package stages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/texts"
	"github.com/shallot-nats/shallot/pipeline/todolist"
	"github.com/shallot-nats/shallot/stages/internal/todo"
)

// todoHelp ends what the stage writes at the end of the system prompt.
const todoHelp = "To add a task, write on one line: [TODO_ADD: title=...]\n" +
	"To change a task (S is one of " + todolist.StatusNames + "), write on one line: [TODO_UPDATE: id=N, status=S]"

// todoBelow stands in the place of the items where they stand at the end of the conversation.
const todoBelow = "Its tasks stand at the end of the conversation, as they are now."

const todoStageName = "todo-list"

// TodoConfig is agent.interceptor.todo-list. It has no keys of its own.
type TodoConfig struct {
	Common `yaml:",inline"`
}

// TodoReport is the value of messages.NoteTodo.
type TodoReport struct {
	Added   []int64       `json:"added,omitempty"`   // ids
	Updated []int64       `json:"updated,omitempty"` // ids
	Cut     []int64       `json:"cut,omitempty"`     // ids of added items whose titles were too long and are cut
	Invalid []TodoInvalid `json:"invalid,omitempty"` // removed from the text all the same
	// Replayed says that the call's directives were in the list already: a redelivery.
	Replayed bool `json:"replayed,omitempty"`
	// Failed says that the store did not answer, so nothing was applied.
	Failed bool `json:"failed,omitempty"`
}

// TodoInvalid is a directive that could not be carried out.
type TodoInvalid struct {
	Directive string `json:"directive"`
	Reason    string `json:"reason"`
}

// todoStage keeps a session's task list: before shows it to the model, at the end of the system prompt or, in a run, at
// the end of the conversation; after carries out the directives of the model's text and takes them out of it. The list
// outlives the call and its run, for it belongs to the session; a call without a session passes on, unless its run has
// a list.
//
// The directives of choice 0 are carried out; those of the other choices of n > 1 are alternatives that nobody has
// chosen yet and are only taken out. When the store does not answer, the call goes on without a list and a warning is
// logged. Safe to run twice: a call's directives are applied once for each attempt path.
type todoStage struct {
	store  pipeline.Store
	log    *slog.Logger
	header string
}

func defaultTodo() TodoConfig {
	return TodoConfig{Common: Common{ApplyTo: []string{pipeline.ApplyAgent, pipeline.ApplySession}}}
}

func newTodo(_ *TodoConfig, d Deps) (pipeline.Stage, error) {
	t := todoStage{store: d.Store("todo"), log: d.Log, header: texts.In(d.Texts).TodoHeader}
	return pipeline.Stage{
		Before: t.before, After: t.after, Filter: t.filter, Plain: saysNothingToDo, Rewrites: true,
		Reads:      []string{"session", "request.messages", "reply.text"},
		ReadsAfter: []string{"session", "reply.text"},
		Writes:     []string{"request.system", "request.messages", "reply.text", "todo"},
	}, nil
}

// todoOf names the list that a call works on: the one of its run, or else that of its session; empty: none.
func todoOf(c *messages.Call) string {
	list := c.Session
	c.Noted(messages.NoteTodoList, &list)
	return list
}

// saysNothingToDo reports whether a reply has no directive.
func saysNothingToDo(c *messages.Call) bool {
	return c.Slip.Back && !bytes.Contains(c.Reply(), []byte(todo.Mark))
}

func (t todoStage) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if todoOf(c) == "" {
		return pipeline.Continue(), nil
	}
	c.Edited(todoStageName)
	l, err := todolist.Load(ctx, t.store, c.Tenant, todoOf(c))
	if err != nil {
		// No list at all rather than an empty one: the model would believe that nothing is to be done.
		t.log.WarnContext(ctx, "todo list not read; the model does not see it", "call", c.ID, "error", err)
		return pipeline.Continue(), nil
	}
	if c.Run == "" {
		c.SetRequest(t.inject(view.Of(c.Wire), c.Request(), t.items(l)))
	} else {
		c.SetRequest(t.below(view.Of(c.Wire), t.inject(view.Of(c.Wire), c.Request(), todoBelow+"\n"), t.items(l)))
	}
	c.Edited(todoStageName, "added")
	return pipeline.Continue(), nil
}

// inject puts the list at the end of the system prompt: the header and the help are always there, so that a model can
// begin a list. A prompt that ends with an earlier list, say because a request is run again as it was sent, gets the
// new one in its place.
func (t todoStage) inject(v view.View, request []byte, items string) []byte {
	block := t.header + "\n" + items + todoHelp
	msgs := v.Messages(request)
	for at, m := range msgs {
		if !m.System() {
			break
		}
		replaced := false
		m, _ := m.MapText(func(s string) string {
			i := todoAt(s, "")
			if i < 0 || !strings.HasSuffix(s, "\n"+todoHelp) {
				return s
			}
			replaced = true
			return s[:i] + block
		})
		if replaced {
			msgs[at] = m
			return v.WithMessages(request, msgs)
		}
	}
	return v.AppendSystem(request, block)
}

// below puts the items behind the last text of the conversation, in the place of earlier ones. The calls of a run
// repeat each other, so what changes from one to the next stands at the end: a provider's prompt cache then holds for
// all that is in front of it. It is no message of its own, because some providers take none from a user, and none with
// instructions, after a tool's result.
func (t todoStage) below(v view.View, request []byte, items string) []byte {
	if items != "" {
		items = t.header + "\n" + strings.TrimSuffix(items, "\n")
	}
	msgs := v.Messages(request)
	at := len(msgs) - 1
	if at >= 0 && todoAt(msgs[at].Text(), "") == 0 && todoItems(msgs[at].Text()) { // a message of its own
		msgs = msgs[:at]
		at--
	}
	texts := 0
	if at >= 0 && !msgs[at].System() && msgs[at].Role() != "assistant" {
		msgs[at].MapText(func(s string) string { texts++; return s })
	}
	if texts == 0 { // nobody has said anything there that the items could follow
		if items != "" {
			msgs = append(msgs, v.NewMsg("user", items))
		}
		return v.WithMessages(request, msgs)
	}
	msgs[at], _ = msgs[at].MapText(func(s string) string {
		if texts--; texts > 0 {
			return s
		}
		if i := todoAt(s, "\n\n"); i >= 0 && todoItems(s[i:]) {
			s = s[:i]
		}
		if items == "" {
			return s
		}
		return s + "\n\n" + items
	})
	return v.WithMessages(request, msgs)
}

// todoAt is where the last list of a text begins, whose header follows the text before; -1 if there is none.
func todoAt(s, before string) int {
	i := -1
	for _, header := range texts.TodoHeaders() {
		i = max(i, strings.LastIndex(s, before+header+"\n"))
	}
	return i
}

// todoItems reports whether a text holds nothing but a header and items.
func todoItems(s string) bool {
	_, items, _ := strings.Cut(strings.TrimPrefix(s, "\n\n"), "\n")
	other := func(line string) bool { return !strings.HasPrefix(line, "#") }
	return !slices.ContainsFunc(strings.Split(items, "\n"), other)
}

// items writes the list as the model reads it: one line an item, in the order of the ids.
func (t todoStage) items(l todolist.List) string {
	items := slices.Clone(l.Items)
	slices.SortStableFunc(items, func(a, b todolist.Item) int { return int(a.ID - b.ID) })
	var b strings.Builder
	for _, it := range items {
		fmt.Fprintf(&b, "#%d [%s] %s\n", it.ID, it.Status, it.Title)
	}
	return b.String()
}

func (t todoStage) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if todoOf(c) == "" || c.Fault != nil || !c.HasReply() {
		return pipeline.Continue(), nil
	}
	reply := c.Reply()
	cleaned, first, any := todoClean(view.Of(c.Wire), reply)
	c.Unnote(messages.NoteEmptied)
	if !any {
		c.Unnote(messages.NoteTodo)
		return pipeline.Continue(), nil
	}
	r, err := t.apply(ctx, c, first)
	if err != nil {
		t.log.WarnContext(ctx, "todo list not changed; the directives are dropped",
			"call", c.ID, "directives", len(first), "error", err)
		r = TodoReport{Failed: true}
	}
	for _, bad := range r.Invalid {
		t.log.WarnContext(ctx, "todo directive skipped", "call", c.ID, "reason", bad.Reason)
	}
	c.Note(messages.NoteTodo, r)
	said := []string{"added", fmt.Sprintf("taken=%d", len(first))}
	if len(r.Invalid) > 0 {
		said = append(said, fmt.Sprintf("refused=%d", len(r.Invalid)))
	}
	if len(r.Cut) > 0 {
		said = append(said, fmt.Sprintf("titles-cut=%d", len(r.Cut)))
		t.log.WarnContext(ctx, "titles of tasks were too long and are cut",
			"call", c.ID, "items", r.Cut, "longest", todolist.MaxTitle-1)
	}
	c.Edited(todoStageName, said...)
	c.SetReply(cleaned)
	if view.EmptyReply(view.Of(c.Wire), cleaned) {
		c.Note(messages.NoteEmptied, todoStageName) // the model did answer: no reason to ask a standby
	}
	return pipeline.Continue(), nil
}

// todoClean takes the directives out of the texts of all choices and returns those of choice 0.
func todoClean(v view.View, reply []byte) (cleaned []byte, first []todo.Directive, any bool) {
	choices := v.Choices(reply)
	for i, ch := range choices {
		var found []todo.Directive
		m, _ := ch.Message().MapText(func(s string) string {
			sc := todo.Scanner{Collect: true}
			s = sc.Text(s) + sc.Flush()
			found = append(found, sc.Found...)
			return s
		})
		if len(found) == 0 {
			continue
		}
		any = true
		choices[i] = ch.WithMessage(m)
		if todoIndex(ch, i) == 0 {
			first = append(first, found...)
		}
	}
	if !any {
		return reply, nil, false
	}
	return v.WithChoices(reply, choices), first, true
}

func todoIndex(ch view.Choice, place int) int64 {
	raw, _ := rawjson.Field(ch.Raw, "index")
	if n, ok := rawjson.Int(raw); ok {
		return n
	}
	return int64(place)
}

// apply carries the directives out by compare and set, so that calls of one session on several workers lose nothing.
func (t todoStage) apply(ctx context.Context, c *messages.Call, ds []todo.Directive) (TodoReport, error) {
	var r TodoReport
	if len(ds) == 0 {
		return r, nil
	}
	if t.store == nil {
		return r, errors.New("there is no store for todo lists")
	}
	mark, key := todoMark(c), messages.Key(c.Tenant, todoOf(c))
	_, err := pipeline.Change(ctx, t.store, key, todolist.KeptFor, func(l *todolist.List) (bool, error) {
		r = TodoReport{} // edit runs again when another writer came between
		if slices.Contains(l.Applied, mark) {
			r.Replayed = true
			return false, nil
		}
		now := time.Now().UTC()
		for _, d := range ds {
			if reason := r.carryOut(l, d.Parse(), now); reason != "" {
				r.Invalid = append(r.Invalid, TodoInvalid{todolist.Clip("TODO_"+d.Verb+":"+d.Body, 120), reason})
			}
		}
		if len(r.Added)+len(r.Updated) == 0 {
			return false, nil
		}
		l.Applied = append(l.Applied, mark)
		l.Applied = l.Applied[max(0, len(l.Applied)-todolist.MaxApplied):]
		l.Revision++
		return true, nil
	})
	return r, err
}

func (r *TodoReport) carryOut(l *todolist.List, e todo.Edit, now time.Time) (reason string) {
	switch {
	case e.Invalid != "":
		return e.Invalid
	case e.Title != "":
		id, err := l.Add(e.Title, todolist.Pending, now)
		if err != nil {
			return err.Error()
		}
		r.Added = append(r.Added, id)
		if e.Cut {
			r.Cut = append(r.Cut, id)
		}
	default:
		it := l.Find(e.ID)
		if it == nil {
			return fmt.Sprintf("there is no item %d", e.ID)
		}
		it.Status, it.Updated = todolist.Status(e.Status), now
		r.Updated = append(r.Updated, e.ID)
	}
	return ""
}

// todoMark names this invocation: the call, and which attempt of the stages around it this is. Redelivery gives the
// same mark, a new answer after an outer Again another one, however often inner stages tried.
func todoMark(c *messages.Call) string {
	again := false
	mark := c.ID
	for _, f := range c.Slip.Frames {
		mark += "." + strconv.Itoa(f.Attempt)
		again = again || f.Attempt > 1
	}
	if !again {
		return c.ID
	}
	return mark
}

func (t todoStage) filter(c *messages.Call) (pipeline.ChunkFilter, error) {
	return &todo.Filter{Off: todoOf(c) == "", Texts: map[pipeline.ChunkKey]*todo.Scanner{}}, nil
}
