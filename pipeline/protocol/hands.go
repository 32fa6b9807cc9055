package protocol

import (
	"slices"
	"time"
)

// Hands is what a member has in hand for each owner, and the lists that it shows them.
type Hands struct {
	owners map[string]*hand
	order  []*hand
}

type hand struct {
	owner     string
	questions map[uint64]time.Duration // since when
	works     []Work                   // of targets: taken, running or kept
	asked     time.Duration            // when the owner last asked for something
	shown     time.Duration            // when the last list left
	changed   bool
	now       bool // the next list leaves at once
	shownQ    []uint64
	scratch   []uint64
}

func newHands() Hands { return Hands{owners: map[string]*hand{}} }

// hand finds an owner's. The map's key is the string of the first message, so that later ones need no copy.
func (h *Hands) hand(owner string) *hand {
	o := h.owners[owner]
	if o == nil {
		o = &hand{owner: owner, questions: map[uint64]time.Duration{}}
		h.owners[owner] = o
		at, _ := slices.BinarySearchFunc(h.order, o, func(a, b *hand) int {
			switch {
			case a.owner < b.owner:
				return -1
			case a.owner > b.owner:
				return 1
			}
			return 0
		})
		h.order = slices.Insert(h.order, at, o)
	}
	return o
}

// take takes a question. It reports false where it is in hand already.
func (h *Hands) take(now time.Duration, owner string, n uint64) bool {
	o := h.hand(owner)
	o.asked = now
	if _, twice := o.questions[n]; twice {
		return false
	}
	o.questions[n] = now
	return true
}

// done forgets a question: its answer has left.
func (h *Hands) done(owner string, n uint64) {
	if o := h.owners[owner]; o != nil {
		delete(o.questions, n)
	}
}

func (h *Hands) work(now time.Duration, owner string, w Work) {
	o := h.hand(owner)
	o.asked, o.changed = now, true
	if !slices.Contains(o.works, w) {
		o.works = append(o.works, w)
	}
}

func (h *Hands) dropWork(owner string, w Work) {
	o := h.owners[owner]
	if o == nil {
		return
	}
	if i := slices.Index(o.works, w); i >= 0 {
		o.works = slices.Delete(o.works, i, i+1)
		o.changed = true
	}
}

// listens reports whether something in hand is old enough to be shown.
func (h *Hands) listens(now time.Duration) bool {
	for _, o := range h.order {
		if len(o.works) > 0 || len(o.questions) > 0 || now-o.asked < askedWithin && len(o.shownQ) > 0 {
			return true
		}
	}
	return false
}

// tick says to whom a list is due: at once where it changed, otherwise every listEvery, to all that asked lately or
// whose work is in hand. Questions of owners that are gone are dropped: nobody hears their answers.
func (h *Hands) tick(now time.Duration, gone func(owner string) bool, out []Effect) []Effect {
	for i := 0; i < len(h.order); i++ {
		o := h.order[i]
		if len(o.questions) > 0 && gone(o.owner) {
			out = append(out, Effect{Kind: DropQuestions, To: o.owner})
		}
		if len(o.questions) == 0 && len(o.works) == 0 && now-o.asked >= askedWithin {
			delete(h.owners, o.owner)
			h.order = slices.Delete(h.order, i, i+1)
			i--
			continue
		}
		o.look(now)
		every := showAfter
		switch {
		case o.now:
			every = 0
		case !o.changed:
			every = listEvery
		case len(o.works)+len(o.shownQ) > manyShown:
			every = listEvery / 2
		}
		if now-o.shown >= every {
			o.shown, o.changed, o.now = now, false, false
			out = append(out, Effect{Kind: List, To: o.owner})
		}
	}
	return out
}

// manyShown is the length from which on a changed list leaves less often: what it costs grows with it.
const manyShown = 500

// look finds the questions that are old enough to be shown, and whether these are others than before.
func (o *hand) look(now time.Duration) {
	o.scratch = o.scratch[:0]
	for n, since := range o.questions {
		if now-since >= showAfter {
			o.scratch = append(o.scratch, n)
		}
	}
	slices.Sort(o.scratch)
	if !slices.Equal(o.scratch, o.shownQ) {
		o.shownQ = append(o.shownQ[:0], o.scratch...)
		o.changed = true
	}
}

// Shown is the list for an owner: the numbers of its questions and the work that is in hand or kept. The slices are
// valid until the next call of a method.
func (h *Hands) Shown(owner string) (questions []uint64, works []Work) {
	if o := h.owners[owner]; o != nil {
		return o.shownQ, o.works
	}
	return nil, nil
}

// restart shows everything again at once.
func (h *Hands) restart() {
	for _, o := range h.order {
		o.now = true
	}
}
