// Package conversation reads a chat history: which result answers which call, what may be dropped together, and how
// many tokens it costs. It knows no stage.
package conversation

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
)

// NotCompleted is the text of a tool message that stands in for a result that never came. It claims nothing about
// the effect, because nobody knows it.
const NotCompleted = "The tool call was not completed: it was cancelled or interrupted before a result was recorded. " +
	"It may or may not have been carried out."

// Messages returns the messages of a request. ok is false where there is nothing to work on: no messages, an empty
// list, or a field that is not an array. Stages leave such a request alone; the entry or the upstream says what is
// wrong.
func Messages(w messages.Wire, request []byte) (msgs []view.Msg, ok bool) {
	msgs = view.Of(w).Messages(request)
	return msgs, len(msgs) > 0
}

// Slot is one tool call of an assistant message and the message that answers it.
type Slot struct {
	ID     string
	name   string
	Result int // index of the result; -1 if there is none
}

// Pairing says which tool message answers which tool call. It is the one routine for this in the package; everything
// that moves, drops or edits messages goes by it. Ids are compared whole; a result belongs to the nearest assistant
// message before it that has a call of its id, because some providers count their ids anew in each message. Only a
// result with no such call before it is looked up among the later calls that nobody answers.
type Pairing struct {
	Roles []string
	Calls map[int][]Slot // index of an assistant message -> its calls, in order
	Owner []int          // for a tool message: the assistant message it belongs to; else -1
	Slot  []int          // for a tool message: which call it answers; -1 for a duplicate and for all others
}

// openID is the latest assistant message that called an id, and its calls of that id that nobody answered yet.
type openID struct {
	msg  int
	free []int
	last int // the call that was answered last
}

// Pair matches results with calls in time linear in the history.
func Pair(msgs []view.Msg) *Pairing {
	p := &Pairing{
		Roles: make([]string, len(msgs)), Calls: map[int][]Slot{},
		Owner: make([]int, len(msgs)), Slot: make([]int, len(msgs)),
	}
	open := map[string]*openID{}
	latest := -1
	var orphans, nameless []int
	group := map[int]int{} // a result without an id -> the group before it
	for i, m := range msgs {
		p.Roles[i], p.Owner[i], p.Slot[i] = m.Role(), -1, -1
		switch p.Roles[i] {
		case "assistant":
			if slots := p.read(i, m, open); len(slots) > 0 {
				latest = i
			}
		case "tool":
			id := m.ToolCallID()
			o := open[id]
			switch {
			case o == nil && id == "" && latest >= 0:
				nameless = append(nameless, i)
				group[i] = latest
			case o == nil:
				orphans = append(orphans, i)
			case len(o.free) > 0:
				o.last = o.free[0]
				o.free = o.free[1:]
				p.answer(i, o.msg, o.last)
			default:
				p.repeat(i, o, msgs)
			}
		case "function":
			if i > 0 && (p.Roles[i-1] == "assistant" || p.Roles[i-1] == "function" && p.Owner[i-1] >= 0) {
				p.Owner[i] = i - 1 // the old form has no ids: the result stands behind its call
			}
		}
	}
	p.adopt(nameless, group)
	p.early(msgs, orphans)
	return p
}

// read takes the calls of an assistant message in. A later call of an id hides the earlier ones.
func (p *Pairing) read(i int, m view.Msg, open map[string]*openID) []Slot {
	calls := m.ToolCalls()
	if len(calls) == 0 {
		return nil
	}
	slots := make([]Slot, len(calls))
	for j, c := range calls {
		slots[j] = Slot{ID: c.ID(), name: c.Name(), Result: -1}
		if o := open[slots[j].ID]; o != nil && o.msg == i {
			o.free = append(o.free, j)
			continue
		}
		open[slots[j].ID] = &openID{msg: i, free: []int{j}}
	}
	p.Calls[i] = slots
	return slots
}

func (p *Pairing) answer(i, msg, slot int) {
	p.Owner[i], p.Slot[i] = msg, slot
	p.Calls[msg][slot].Result = i
}

// adopt gives each result without an id to the first call that nobody answered, of the group before it.
func (p *Pairing) adopt(nameless []int, group map[int]int) {
	cursor := map[int]int{}
	for _, i := range nameless {
		slots := p.Calls[group[i]]
		j := cursor[group[i]]
		for j < len(slots) && slots[j].Result >= 0 {
			j++
		}
		if j < len(slots) {
			p.answer(i, group[i], j)
		}
		cursor[group[i]] = j
	}
}

// repeat notes a further result of a call. The first stays, because the model has seen it; only a stand-in gives way
// to the real one that came after it.
func (p *Pairing) repeat(i int, o *openID, msgs []view.Msg) {
	p.Owner[i] = o.msg
	if first := p.Calls[o.msg][o.last].Result; msgs[first].Text() == NotCompleted {
		p.Slot[first] = -1
		p.answer(i, o.msg, o.last)
	}
}

// early finds the calls of results that came before them.
func (p *Pairing) early(msgs []view.Msg, orphans []int) {
	if len(orphans) == 0 {
		return
	}
	type place struct{ msg, slot int }
	free := map[string][]place{}
	for i := range msgs {
		for j, s := range p.Calls[i] {
			if s.Result < 0 {
				free[s.ID] = append(free[s.ID], place{i, j})
			}
		}
	}
	for _, i := range orphans {
		id := msgs[i].ToolCallID()
		at := free[id]
		for len(at) > 0 && at[0].msg < i {
			at = at[1:]
		}
		if len(at) > 0 {
			p.answer(i, at[0].msg, at[0].slot)
			at = at[1:]
		}
		free[id] = at
	}
}

// Tool returns the name of the tool that a result came from, as its call has it, or else as the result has it.
func (p *Pairing) Tool(i int, m view.Msg) string {
	if p.Owner[i] >= 0 && p.Slot[i] >= 0 {
		return p.Calls[p.Owner[i]][p.Slot[i]].name
	}
	return m.Name()
}

// Atom is what is kept or dropped as one: a message, or an assistant message with tool calls and all its results.
// System and developer messages and the newest user message are pinned: no strategy drops them.
type Atom struct {
	At     []int // indices of its messages, rising
	Pinned bool
	System bool
	Round  int
}

// History is a list of messages read for editing.
type History struct {
	Msgs   []view.Msg
	pair   *Pairing
	Atoms  []Atom
	Rounds int // a round starts at a user message; what stands before the first one belongs to the first round
	cost   []int
}

// ReadHistory groups messages to atoms and rounds. Time is linear in the history.
func ReadHistory(msgs []view.Msg) *History {
	h := &History{Msgs: msgs, pair: Pair(msgs)}
	newest := -1
	for i, r := range h.pair.Roles {
		if r == "user" {
			newest = i
		}
	}
	of := make([]int, len(msgs)) // message -> its atom
	users, late := 0, map[int][]int{}
	for i, r := range h.pair.Roles {
		if o := h.pair.Owner[i]; o > i {
			late[o] = append(late[o], i) // a result before its call moves with the call
			of[i] = -1
			continue
		} else if o >= 0 {
			of[i] = of[o]
			h.Atoms[of[o]].At = append(h.Atoms[of[o]].At, i)
			continue
		}
		if r == "user" {
			users++
		}
		system := r == "system" || r == "developer"
		at := append(late[i], i)
		of[i] = len(h.Atoms)
		h.Atoms = append(h.Atoms, Atom{At: at, Pinned: system || i == newest, System: system, Round: max(users-1, 0)})
	}
	h.Rounds = max(users, 1)
	return h
}

// Count fills in what each message costs.
func (h *History) Count(model string, c TokenCounter) {
	h.cost = make([]int, len(h.Msgs))
	for i := range h.Msgs {
		h.cost[i] = c.Count(model, h.Msgs[i:i+1])
	}
}

// Tokens is the cost of an atom.
func (h *History) Tokens(a Atom) int {
	n := 0
	for _, i := range a.At {
		n += h.cost[i]
	}
	return n
}

// Split returns the messages of the atoms that are pinned or that keep wants, in their order, those of the others,
// and where among the kept ones the first stands that is not a system message.
func (h *History) Split(keep func(i int, a Atom) bool) (kept, dropped []view.Msg, first int) {
	stay := make([]bool, len(h.Msgs))
	for i, a := range h.Atoms {
		if a.Pinned || keep(i, a) {
			for _, i := range a.At {
				stay[i] = true
			}
		}
	}
	first = -1
	for i, m := range h.Msgs {
		if !stay[i] {
			dropped = append(dropped, m)
			continue
		}
		if r := h.pair.Roles[i]; first < 0 && r != "system" && r != "developer" {
			first = len(kept)
		}
		kept = append(kept, m)
	}
	if first < 0 {
		first = len(kept)
	}
	return kept, dropped, first
}
