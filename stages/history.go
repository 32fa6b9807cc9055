package stages

import (
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// notCompleted is the text of a tool message that stands in for a result that never came. It claims nothing about
// the effect, because nobody knows it.
const notCompleted = "The tool call was not completed: it was cancelled or interrupted before a result was recorded. " +
	"It may or may not have been carried out."

// messagesOf returns the messages of a chat request. ok is false where there is nothing to work on: no messages, an empty
// list, or a field that is no array. Stages leave such a request alone; the entry or the upstream says what is wrong.
func messagesOf(request []byte) (msgs []chat.Msg, ok bool) {
	msgs = chat.Messages(request)
	return msgs, len(msgs) > 0
}

// slot is one tool call of an assistant message and the message that answers it.
type slot struct {
	id     string
	name   string
	result int // index of the result; -1 if there is none
}

// pairing says which tool message answers which tool call. It is the one routine for this in the package; everything
// that moves, drops or edits messages goes by it. Ids are compared whole; a result belongs to the nearest assistant
// message before it that has a call of its id, because some providers count their ids anew in each message. Only a
// result with no such call before it is looked up among the later calls that nobody answers.
type pairing struct {
	roles []string
	calls map[int][]slot // index of an assistant message -> its calls, in order
	owner []int          // for a tool message: the assistant message it belongs to; else -1
	slot  []int          // for a tool message: which call it answers; -1 for a duplicate and for all others
}

// openID is the latest assistant message that called an id, and its calls of that id that nobody answered yet.
type openID struct {
	msg  int
	free []int
	last int // the call that was answered last
}

// pair matches results with calls in time linear in the history.
func pair(msgs []chat.Msg) *pairing {
	p := &pairing{
		roles: make([]string, len(msgs)), calls: map[int][]slot{},
		owner: make([]int, len(msgs)), slot: make([]int, len(msgs)),
	}
	open := map[string]*openID{}
	latest := -1
	var orphans, nameless []int
	group := map[int]int{} // a result without an id -> the group before it
	for i, m := range msgs {
		p.roles[i], p.owner[i], p.slot[i] = m.Role(), -1, -1
		switch p.roles[i] {
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
			if i > 0 && (p.roles[i-1] == "assistant" || p.roles[i-1] == "function" && p.owner[i-1] >= 0) {
				p.owner[i] = i - 1 // the old form has no ids: the result stands behind its call
			}
		}
	}
	p.adopt(nameless, group)
	p.early(msgs, orphans)
	return p
}

// read takes the calls of an assistant message in. A later call of an id hides the earlier ones.
func (p *pairing) read(i int, m chat.Msg, open map[string]*openID) []slot {
	calls := m.ToolCalls()
	if len(calls) == 0 {
		return nil
	}
	slots := make([]slot, len(calls))
	for j, c := range calls {
		slots[j] = slot{id: c.ID(), name: c.Name(), result: -1}
		if o := open[slots[j].id]; o != nil && o.msg == i {
			o.free = append(o.free, j)
			continue
		}
		open[slots[j].id] = &openID{msg: i, free: []int{j}}
	}
	p.calls[i] = slots
	return slots
}

func (p *pairing) answer(i, msg, slot int) {
	p.owner[i], p.slot[i] = msg, slot
	p.calls[msg][slot].result = i
}

// adopt gives each result without an id to the first call that nobody answered, of the group before it.
func (p *pairing) adopt(nameless []int, group map[int]int) {
	cursor := map[int]int{}
	for _, i := range nameless {
		slots := p.calls[group[i]]
		j := cursor[group[i]]
		for j < len(slots) && slots[j].result >= 0 {
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
func (p *pairing) repeat(i int, o *openID, msgs []chat.Msg) {
	p.owner[i] = o.msg
	if first := p.calls[o.msg][o.last].result; msgs[first].Text() == notCompleted {
		p.slot[first] = -1
		p.answer(i, o.msg, o.last)
	}
}

// early finds the calls of results that came before them.
func (p *pairing) early(msgs []chat.Msg, orphans []int) {
	if len(orphans) == 0 {
		return
	}
	type place struct{ msg, slot int }
	free := map[string][]place{}
	for i := range msgs {
		for j, s := range p.calls[i] {
			if s.result < 0 {
				free[s.id] = append(free[s.id], place{i, j})
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

// tool returns the name of the tool that a result came from, as its call has it, or else as the result has it.
func (p *pairing) tool(i int, m chat.Msg) string {
	if p.owner[i] >= 0 && p.slot[i] >= 0 {
		return p.calls[p.owner[i]][p.slot[i]].name
	}
	name, _ := rawjson.FieldString(m.Raw, "name")
	return name
}

// atom is what is kept or dropped as one: a message, or an assistant message with tool calls and all its results
// (CE-12). System and developer messages and the newest user message are pinned: no strategy drops them.
type atom struct {
	at     []int // indices of its messages, rising
	pinned bool
	system bool
	round  int
}

// history is a list of messages read for editing.
type history struct {
	msgs   []chat.Msg
	pair   *pairing
	atoms  []atom
	rounds int // a round starts at a user message; what stands before the first one belongs to the first round
	cost   []int
}

// readHistory groups messages to atoms and rounds. Time is linear in the history.
func readHistory(msgs []chat.Msg) *history {
	h := &history{msgs: msgs, pair: pair(msgs)}
	newest := -1
	for i, r := range h.pair.roles {
		if r == "user" {
			newest = i
		}
	}
	of := make([]int, len(msgs)) // message -> its atom
	users, late := 0, map[int][]int{}
	for i, r := range h.pair.roles {
		if o := h.pair.owner[i]; o > i {
			late[o] = append(late[o], i) // a result before its call moves with the call
			of[i] = -1
			continue
		} else if o >= 0 {
			of[i] = of[o]
			h.atoms[of[o]].at = append(h.atoms[of[o]].at, i)
			continue
		}
		if r == "user" {
			users++
		}
		system := r == "system" || r == "developer"
		at := append(late[i], i)
		of[i] = len(h.atoms)
		h.atoms = append(h.atoms, atom{at: at, pinned: system || i == newest, system: system, round: max(users-1, 0)})
	}
	h.rounds = max(users, 1)
	return h
}

// count fills in what each message costs.
func (h *history) count(model string, c TokenCounter) {
	h.cost = make([]int, len(h.msgs))
	for i := range h.msgs {
		h.cost[i] = c.Count(model, h.msgs[i:i+1])
	}
}

// tokens is the cost of an atom.
func (h *history) tokens(a atom) int {
	n := 0
	for _, i := range a.at {
		n += h.cost[i]
	}
	return n
}

// split returns the messages of the atoms that are pinned or that keep wants, in their order, those of the others,
// and where among the kept ones the first stands that is no system message.
func (h *history) split(keep func(i int, a atom) bool) (kept, dropped []chat.Msg, first int) {
	stay := make([]bool, len(h.msgs))
	for i, a := range h.atoms {
		if a.pinned || keep(i, a) {
			for _, i := range a.at {
				stay[i] = true
			}
		}
	}
	first = -1
	for i, m := range h.msgs {
		if !stay[i] {
			dropped = append(dropped, m)
			continue
		}
		if r := h.pair.roles[i]; first < 0 && r != "system" && r != "developer" {
			first = len(kept)
		}
		kept = append(kept, m)
	}
	if first < 0 {
		first = len(kept)
	}
	return kept, dropped, first
}
