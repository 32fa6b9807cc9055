package stages

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// trim keeps the first and the last messages of the list (S0-CEDIT-2). Places are counted over the whole list. An
// atom with one message inside a kept range is kept whole (CE-12), so the result may be longer than first + last.
func (e *contextEditor) trim(h *conversation.History, ed *Edited) []chat.Msg {
	head, tail := e.conf.TrimKeepFirst, len(h.Msgs)-e.conf.TrimKeepLast
	kept, dropped, _ := h.Split(func(_ int, a conversation.Atom) bool {
		return a.At[0] < head || a.At[len(a.At)-1] >= tail
	})
	ed.Dropped = len(dropped)
	return kept
}

// window keeps the latest rounds whole (S0-CEDIT-4, X-21).
func (e *contextEditor) window(h *conversation.History, ed *Edited) []chat.Msg {
	from := h.Rounds - e.conf.WindowRounds
	kept, dropped, _ := h.Split(func(_ int, a conversation.Atom) bool { return a.Round >= from })
	ed.Dropped = len(dropped)
	return kept
}

// summarize puts one summary in the place of the old part (CE-6). The recent part is what stands at the end, at most
// trim-keep-last messages and at most half of the threshold in tokens, but never less than the last atom.
func (e *contextEditor) summarize(ctx context.Context, c *messages.Call, model string, h *conversation.History, ed *Edited) []chat.Msg {
	from, count, cost := len(h.Atoms), 0, 0
	for i := len(h.Atoms) - 1; i >= 0; i-- {
		a := h.Atoms[i]
		if a.System {
			continue
		}
		n := h.Tokens(a)
		if from < len(h.Atoms) && (count+len(a.At) > e.conf.TrimKeepLast || cost+n > e.conf.SummarizeThreshold/2) {
			break
		}
		from, count, cost = i, count+len(a.At), cost+n
	}
	kept, dropped, first := h.Split(func(i int, _ conversation.Atom) bool { return i >= from })
	if len(dropped) == 0 {
		return h.Msgs
	}
	text, how := e.summary(ctx, c, model, dropped)
	ed.Summary = how
	if text == "" {
		ed.Skipped = "no summary: " + how
		return h.Msgs
	}
	ed.Dropped = len(dropped)
	return insert(kept, first, summaryMessage(e.clip(model, text, max(e.conf.SummarizeThreshold/4, shareSummary))))
}

// hybrid keeps the latest rounds that fit into max-tokens, at most window-rounds, and puts a summary of the rest
// before them (S0-CEDIT-5, CE-9). A quarter of the budget is held free for the summary as long as the newest round
// leaves it. The newest round is kept whatever it costs. If no summary is to be had, the window alone goes on.
func (e *contextEditor) hybrid(ctx context.Context, c *messages.Call, model string, h *conversation.History, ed *Edited) []chat.Msg {
	rounds := make([]int, h.Rounds)
	fixed, newest := 0, h.Rounds-1
	for _, a := range h.Atoms {
		n := h.Tokens(a)
		if a.Pinned && a.Round != newest || a.System {
			fixed += n
		} else {
			rounds[a.Round] += n
		}
	}
	room := e.conf.MaxTokens - fixed - rounds[newest] // for older rounds and the summary
	share := min(max(e.conf.MaxTokens/4, shareSummary), max(room, 0))
	from, used := newest, 0
	for from > 0 && newest-from+1 < e.conf.WindowRounds && used+rounds[from-1] <= room-share {
		from--
		used += rounds[from]
	}
	kept, dropped, first := h.Split(func(_ int, a conversation.Atom) bool { return a.Round >= from })
	if len(dropped) == 0 {
		return h.Msgs
	}
	ed.Dropped = len(dropped)
	share = room - used
	if room < 0 {
		share = max(e.conf.MaxTokens/8, shareSummary) // over the budget in any case; what was said before still counts
	}
	if share < minSummary {
		ed.Summary = "no room for a summary"
		return kept
	}
	text, how := e.summary(ctx, c, model, dropped)
	ed.Summary = how
	if text == "" {
		return kept
	}
	return insert(kept, first, summaryMessage(e.clip(model, text, share)))
}

// Tokens of a summary message: under minSummary there is hardly more than its heading, so none is made; shareSummary
// is kept free for one where a share of the limit would be less.
const (
	minSummary   = 16
	shareSummary = 40
)

func insert(msgs []chat.Msg, at int, m chat.Msg) []chat.Msg {
	out := make([]chat.Msg, 0, len(msgs)+1)
	out = append(out, msgs[:at]...)
	out = append(out, m)
	return append(out, msgs[at:]...)
}
