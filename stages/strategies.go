package stages

import (
	"context"
	"math"

	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// trim keeps the first and the last messages of the list. Places are counted over the whole list. An atom with one
// message inside a kept range is kept whole, so the result may be longer than first + last.
func (e *contextEditor) trim(h *conversation.History, ed *Edited) []view.Msg {
	head, tail := e.conf.TrimKeepFirst, len(h.Msgs)-e.conf.TrimKeepLast
	kept, dropped, _ := h.Split(func(_ int, a conversation.Atom) bool {
		return a.At[0] < head || a.At[len(a.At)-1] >= tail
	})
	ed.Dropped = len(dropped)
	return kept
}

// window keeps the latest rounds whole; a round starts at a user message.
func (e *contextEditor) window(h *conversation.History, ed *Edited) []view.Msg {
	from := h.Rounds - e.conf.WindowRounds
	kept, dropped, _ := h.Split(func(_ int, a conversation.Atom) bool { return a.Round >= from })
	ed.Dropped = len(dropped)
	return kept
}

// summarize keeps the history under summarize-threshold by a summary of its old part. A step leaves at the end at most
// trim-keep-last messages, and of the threshold what summary-growth does not hold free, but never less than the last
// atom.
func (r *rolling) summarize(ctx context.Context) []view.Msg {
	r.most, r.rounds = r.conf.SummarizeThreshold, r.h.Rounds
	r.deep = func() int {
		cut, count, cost := len(r.talk), 0, 0
		for cut > 0 {
			a := r.h.Atoms[r.talk[cut-1]]
			n := r.h.Tokens(a)
			if cut < len(r.talk) && (count+len(a.At) > r.conf.TrimKeepLast || cost+n > r.afterStep(r.most)) {
				break
			}
			cut, count, cost = cut-1, count+len(a.At), cost+n
		}
		return cut
	}
	return r.roll(ctx)
}

// hybrid keeps the latest rounds, at most window-rounds, and puts a summary of the rest before them, together at most
// max-tokens. The newest round is kept whatever it costs. If no summary is to be had, the window alone goes on.
func (r *rolling) hybrid(ctx context.Context) []view.Msg {
	r.most, r.rounds = r.conf.MaxTokens, r.conf.WindowRounds
	r.deep = func() int {
		return r.fit(r.afterStep(r.most), max(r.afterStep(r.rounds), 1), max(r.most/8, shareSummary))
	}
	return r.roll(ctx)
}

// afterStep is how much of a limit a step may leave, so that the next one comes only when the text has grown.
func (e *contextEditor) afterStep(limit int) int {
	return int(math.Ceil(float64(limit) * (1 - e.conf.SummaryGrowth)))
}

// Tokens of a summary message: under minSummary there is hardly more than its heading, so none is made; shareSummary
// is kept free for one where a share of the limit would be less.
const (
	minSummary   = 16
	shareSummary = 40
)

func insert(msgs []view.Msg, at int, m view.Msg) []view.Msg {
	out := make([]view.Msg, 0, len(msgs)+1)
	out = append(out, msgs[:at]...)
	out = append(out, m)
	return append(out, msgs[at:]...)
}
