package stages

import (
	"context"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// PairRepairConfig is agent.interceptor.pair-repair.
type PairRepairConfig struct {
	Common `yaml:",inline"`
}

// PairRepaired is the note of one repair: ids of tool calls, in the order of the history.
type PairRepaired struct {
	Made       []string `json:"made,omitempty"`       // calls without a result: one was written that says so
	Dropped    []string `json:"dropped,omitempty"`    // results without a call
	Duplicates []string `json:"duplicates,omitempty"` // further results of a call
	Moved      []string `json:"moved,omitempty"`      // results that did not stand behind their call
	Matched    []string `json:"matched,omitempty"`    // results without an id: the ids of the calls that got them
	Renamed    []string `json:"renamed,omitempty"`    // new ids of calls that had none, or one that was taken
}

func (r PairRepaired) none() bool {
	return len(r.Made)+len(r.Dropped)+len(r.Duplicates)+len(r.Moved)+len(r.Matched)+len(r.Renamed) == 0
}

// words are the counts of what was done, for the caller.
func (r PairRepaired) words() (out []string) {
	for _, w := range []struct {
		name string
		ids  []string
	}{{"made", r.Made}, {"dropped", r.Dropped}, {"duplicates", r.Duplicates}, {"moved", r.Moved}, {"matched", r.Matched},
		{"renamed", r.Renamed}} {
		if len(w.ids) > 0 {
			out = append(out, fmt.Sprintf("%s=%d", w.name, len(w.ids)))
		}
	}
	return out
}

func defaultPairRepair() PairRepairConfig {
	return PairRepairConfig{Common: Common{ApplyTo: []string{pipeline.ApplyAgent}}}
}

// newPairRepair makes the stage that puts tool calls and tool results together again before anything edits the
// history. Afterwards every assistant message with tool calls is followed at once by exactly one result for
// each id, which is what upstreams check. A history that is right already keeps every byte.
func newPairRepair(_ *PairRepairConfig, d Deps) (pipeline.Stage, error) {
	return pipeline.Stage{
		Reads: []string{"request.messages"}, Writes: []string{"request.messages"},
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.Edited("pair-repair")
			msgs, ok := conversation.Messages(c.Wire, c.Request())
			if !ok {
				return pipeline.Continue(), nil
			}
			out, done := RepairPairs(msgs)
			if done.none() {
				c.Unnote(messages.NotePairRepair)
				return pipeline.Continue(), nil
			}
			c.SetRequest(view.Of(c.Wire).WithMessages(c.Request(), out))
			c.Note(messages.NotePairRepair, done)
			c.Edited("pair-repair", done.words()...)
			d.Log.Info("pair repair", "call", c.ID, "made", len(done.Made), "dropped", len(done.Dropped),
				"duplicates", len(done.Duplicates), "moved", len(done.Moved), "matched", len(done.Matched),
				"renamed", len(done.Renamed))
			return pipeline.Continue(), nil
		},
	}, nil
}

// RepairPairs returns the messages with calls and results paired, and what was done for it. The input is not changed.
// It is deterministic, and a second run finds nothing to do.
func RepairPairs(msgs []view.Msg) ([]view.Msg, PairRepaired) {
	p := conversation.Pair(msgs)
	r := &repair{msgs: msgs, p: p, out: make([]view.Msg, 0, len(msgs))}
	for i, m := range msgs {
		switch p.Roles[i] {
		case "tool":
			switch {
			case p.Slot[i] >= 0: // stands with its call
			case p.Owner[i] >= 0:
				r.done.Duplicates = append(r.done.Duplicates, m.ToolCallID())
			default:
				r.done.Dropped = append(r.done.Dropped, m.ToolCallID())
			}
		case "assistant":
			if len(p.Calls[i]) > 0 {
				r.group(i)
				continue
			}
			r.out = append(r.out, m)
		default:
			r.out = append(r.out, m)
		}
	}
	return r.out, r.done
}

type repair struct {
	msgs []view.Msg
	p    *conversation.Pairing
	used map[string]bool
	out  []view.Msg
	done PairRepaired
}

// group writes one assistant message with its results: those that exist in their order, then the missing ones.
func (r *repair) group(i int) {
	slots := r.p.Calls[i]
	ids := r.ids(i)
	results := make(map[int]int, len(slots)) // message -> slot
	for j, s := range slots {
		if s.Result >= 0 {
			results[s.Result] = j
		}
	}
	// An intact group stands right behind its call; the order of its results is left as it is.
	r.out = append(r.out, r.head(i, ids))
	done := make([]bool, len(slots))
	next := i + 1
	for ; next < len(r.msgs) && r.p.Roles[next] == "tool"; next++ {
		if j, ok := results[next]; ok {
			r.result(next, slots[j], ids[j])
			done[j] = true
		} else if r.p.Slot[next] >= 0 {
			break // a result of another group
		}
	}
	for j, s := range slots {
		switch {
		case done[j]:
		case s.Result >= 0:
			r.result(s.Result, s, ids[j])
			r.done.Moved = append(r.done.Moved, ids[j])
		default:
			call := r.msgs[i].ToolCalls()[j].WithID(ids[j])
			r.out = append(r.out, r.msgs[i].NewResult(call, conversation.NotCompleted))
			r.done.Made = append(r.done.Made, ids[j])
		}
	}
}

func (r *repair) result(at int, s conversation.Slot, id string) {
	m := r.msgs[at]
	if m.ToolCallID() != s.ID {
		r.done.Matched = append(r.done.Matched, id)
	}
	if m.ToolCallID() != id {
		m = m.WithToolCallID(id)
	}
	r.out = append(r.out, m)
}

// ids returns the ids of a group's calls, each of them set and single.
func (r *repair) ids(i int) []string {
	slots := r.p.Calls[i]
	ids := make([]string, len(slots))
	seen := make(map[string]bool, len(slots))
	for j, s := range slots {
		if s.ID != "" && !seen[s.ID] {
			ids[j] = s.ID
			seen[s.ID] = true
		}
	}
	for j, s := range slots {
		if ids[j] != "" {
			continue
		}
		r.load()
		base := s.ID
		if base == "" {
			base = fmt.Sprintf("call_%d", i)
		}
		id := base
		for n := j + 1; id == s.ID || seen[id] || r.used[id]; n++ {
			id = fmt.Sprintf("%s_%d", base, n)
		}
		ids[j] = id
		seen[id] = true
		r.used[id] = true
		r.done.Renamed = append(r.done.Renamed, id)
	}
	return ids
}

// load fills in the ids that the history's calls have, once, where a new id is needed.
func (r *repair) load() {
	if r.used != nil {
		return
	}
	r.used = map[string]bool{}
	for _, slots := range r.p.Calls {
		for _, s := range slots {
			r.used[s.ID] = true
		}
	}
}

// head is the assistant message, with the new ids written in.
func (r *repair) head(i int, ids []string) view.Msg {
	m := r.msgs[i]
	calls := m.ToolCalls()
	changed := false
	for j := range calls {
		if calls[j].ID() != ids[j] {
			calls[j] = calls[j].WithID(ids[j])
			changed = true
		}
	}
	if !changed {
		return m
	}
	return m.WithToolCalls(calls)
}
