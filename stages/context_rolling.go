package stages

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// summaryMark is one point up to which a conversation was summarised, or was to be. It holds for every history that
// begins with the same atoms, so a history that was edited before that point never gets it.
type summaryMark struct {
	Cut  int    `json:"cut"`  // atoms before the point, those of system messages apart
	Sum  string `json:"sum"`  // of those atoms
	Text string `json:"text"` // the summary; empty: there is none
	Said int    `json:"said"` // atoms that the text tells of: Cut, or fewer where the summary failed
	// Failed says why the text does not reach Cut; nobody tries again before Until.
	Failed string    `json:"failed,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

// summaryMarks is what the store keeps of a conversation: its latest marks, newest last. There is more than one, so
// that a caller who goes back and edits, and calls of one session that run at once, find what was paid for.
type summaryMarks struct {
	Marks []summaryMark `json:"marks"`
}

const (
	keptMarks  = 4
	summaryTTL = 7 * 24 * time.Hour // since the last step
)

func (m *summaryMarks) add(n summaryMark) {
	if i := slices.IndexFunc(m.Marks, func(o summaryMark) bool { return o.Sum == n.Sum }); i >= 0 {
		if n.Failed != "" && m.Marks[i].Failed == "" {
			return // another call got the summary meanwhile
		}
		m.Marks = slices.Delete(m.Marks, i, i+1)
	}
	m.Marks = append(m.Marks, n)
	m.Marks = m.Marks[max(0, len(m.Marks)-keptMarks):]
}

// rolling is one conversation while a strategy that summarises edits it.
type rolling struct {
	*contextEditor
	c        *messages.Call
	model    string
	strategy string
	h        *conversation.History
	ed       *Edited
	most     int        // tokens that the result may have
	rounds   int        // and rounds
	talk     []int      // the atoms that may be cut, by their place in h.Atoms
	sums     []string   // of the first n of them
	deep     func() int // how many of them the next step cuts
}

// roll edits a history by summary and window. What was summarised stays as it is while the result is within its limits:
// the prompt begins alike from call to call, and nothing is paid. Beyond them a step is taken: the summary so far and
// what came since are summarised anew, and so much is cut that the text may grow by summary-growth before the next one.
// A step that fails is remembered; until it may be tried again the window alone keeps the limit.
func (r *rolling) roll(ctx context.Context) []view.Msg {
	for i, a := range r.h.Atoms {
		if !a.System {
			r.talk = append(r.talk, i)
		}
	}
	r.sums = r.digest()
	store, key := r.store(), r.key()
	m := r.find(ctx, store, key)
	now := time.Now()
	switch {
	case m.Failed != "" && now.Before(m.Until):
		return r.fallback(m)
	case m.Failed == "" && m.Cut > 0:
		if out, ok := r.within(m); ok {
			r.ed.Summary = summaryCached
			return out
		}
	}
	cut := max(r.deep(), m.Cut)
	switch {
	case cut == 0:
		return r.h.Msgs
	case cut == m.Said:
		r.ed.Summary = summaryCached
		return r.apply(m.Text, cut)
	case r.bound(cut) < minSummary:
		r.ed.Summary = "no room for a summary"
		return r.apply("", cut)
	}
	next := summaryMark{Cut: cut, Sum: r.sums[cut], Said: cut}
	text, how := r.ask(ctx, m, next.Sum, r.since(m.Said, cut))
	if text == "" {
		r.deps.Log.Warn("context editing: no summary", "call", r.c.ID, "why", how,
			"retryAfter", r.conf.SummaryRetryAfter)
		next.Text, next.Said, next.Failed, next.Until = m.Text, m.Said, how, now.Add(r.conf.SummaryRetryAfter).UTC()
	} else {
		next.Text = r.clip(text, r.bound(cut))
	}
	r.keep(ctx, store, key, next)
	if next.Failed != "" {
		return r.fallback(next)
	}
	r.ed.Summary = summaryMade
	return r.apply(next.Text, cut)
}

// What Edited.Summary says of a summary that is there.
const (
	summaryMade   = "made"
	summaryCached = "cached"
)

// fallback is the window in the place of a summary that failed. A summary of an earlier part is still shown.
func (r *rolling) fallback(m summaryMark) []view.Msg {
	r.ed.Summary = m.Failed
	cut := m.Said
	if r.ed.Before > r.conf.MaxTokens {
		cut = max(cut, r.fit(r.conf.MaxTokens, r.rounds, r.cost(m.Text)))
	}
	if cut == 0 {
		r.ed.Skipped = "no summary: " + m.Failed
		return r.h.Msgs
	}
	return r.apply(m.Text, cut)
}

// within returns the history under a mark if that keeps the limits.
func (r *rolling) within(m summaryMark) ([]view.Msg, bool) {
	out := r.apply(m.Text, m.Cut)
	newest := r.h.Rounds - 1
	first := newest
	if m.Cut < len(r.talk) {
		first = r.h.Atoms[r.talk[m.Cut]].Round
	}
	return out, newest-first < r.rounds && r.counter.Count(r.model, out) <= r.most
}

// apply leaves out the atoms before the cut and puts the text in their place.
func (r *rolling) apply(text string, cut int) []view.Msg {
	kept, dropped, first := r.split(cut)
	r.ed.Dropped = len(dropped)
	if text == "" {
		return kept
	}
	return insert(kept, first, summaryMessage(r.c.Wire, text))
}

func (r *rolling) split(cut int) (kept, dropped []view.Msg, first int) {
	from := len(r.h.Atoms)
	if cut < len(r.talk) {
		from = r.talk[cut]
	}
	return r.h.Split(func(i int, _ conversation.Atom) bool { return i >= from })
}

// since returns the messages of the atoms from one cut to another. One that is pinned is among them: it will not be
// pinned for ever, and then only the summary tells of it.
func (r *rolling) since(from, to int) []view.Msg {
	var out []view.Msg
	for _, i := range r.talk[from:to] {
		for _, at := range r.h.Atoms[i].At {
			out = append(out, r.h.Msgs[at])
		}
	}
	return out
}

// bound is how many tokens a summary before a cut may have: a quarter of the limit as long as the kept part leaves it.
// Where that is over the limit by itself, what was said before still counts.
func (r *rolling) bound(cut int) int {
	kept, _, _ := r.split(cut)
	room := r.most - r.counter.Count(r.model, kept)
	if room < 0 {
		return max(r.most/8, shareSummary)
	}
	return min(max(r.most/4, shareSummary), room)
}

func (r *rolling) cost(text string) int {
	if text == "" {
		return 0
	}
	return r.counter.Count(r.model, []view.Msg{summaryMessage(r.c.Wire, text)})
}

// fit returns the cut before the latest rounds that fit into so many tokens beside a summary, at most so many rounds.
// The newest round is kept whatever it costs.
func (r *rolling) fit(tokens, most, summary int) int {
	newest := r.h.Rounds - 1
	cost := make([]int, r.h.Rounds)
	for _, a := range r.h.Atoms {
		n := r.h.Tokens(a)
		if a.System {
			tokens -= n
			continue
		}
		cost[a.Round] += n
	}
	from, used := newest, cost[newest]+summary
	for from > 0 && newest-from+1 < most && used+cost[from-1] <= tokens {
		from--
		used += cost[from]
	}
	return slices.IndexFunc(r.talk, func(i int) bool { return r.h.Atoms[i].Round >= from })
}

// digest returns, for each n, the identity of the first n atoms that may be cut.
func (r *rolling) digest() []string {
	h := sha256.New()
	last := make([]byte, 0, sha256.Size)
	sums := make([]string, 1, len(r.talk)+1)
	for _, i := range r.talk {
		h.Reset()
		h.Write(last)
		for _, at := range r.h.Atoms[i].At {
			raw := r.h.Msgs[at].Bytes()
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(raw))))
			h.Write(raw)
		}
		last = h.Sum(last[:0])
		sums = append(sums, hex.EncodeToString(last))
	}
	return sums
}

// key names the conversation: the session, else the run, else how the conversation begins.
func (r *rolling) key() string {
	of := []string{"session", r.c.Session}
	switch {
	case r.c.Session != "":
	case r.c.Run != "":
		of = []string{"run", r.c.Run}
	case len(r.sums) > 1:
		of = []string{"text", r.sums[1]}
	}
	return messages.Key("summary", r.c.Tenant, r.strategy, of[0], of[1])
}

// find returns the mark that reaches furthest into this history; without one, a mark at its beginning.
func (r *rolling) find(ctx context.Context, store pipeline.Store, key string) (best summaryMark) {
	if store == nil {
		return best
	}
	ctx, cancel := openStore(ctx)
	defer cancel()
	e, err := store.Get(ctx, key)
	var known summaryMarks
	if err != nil || json.Unmarshal(e.Value, &known) != nil {
		return best
	}
	for _, m := range known.Marks {
		if m.Cut > best.Cut && m.Cut < len(r.sums) && r.sums[m.Cut] == m.Sum && m.Said <= m.Cut {
			best = m
		}
	}
	return best
}

// keep stores a mark beside those of calls that ran meanwhile.
func (r *rolling) keep(ctx context.Context, store pipeline.Store, key string, m summaryMark) {
	if store == nil {
		return
	}
	ctx, cancel := openStore(context.WithoutCancel(ctx))
	defer cancel()
	_, err := pipeline.Change(ctx, store, key, summaryTTL, func(known *summaryMarks) (bool, error) {
		known.add(m)
		return true, nil
	})
	if err != nil {
		r.deps.Log.Warn("context editing: summary not kept", "call", r.c.ID, "err", err)
	}
}
