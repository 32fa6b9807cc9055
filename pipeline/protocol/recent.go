package protocol

import "time"

// recent is a set of work that forgets it after rememberFor to twice that, at no cost for each.
type recent struct {
	now, before map[Work]struct{}
	turned      time.Duration
}

func (r *recent) add(now time.Duration, w Work) {
	r.turn(now)
	r.now[w] = struct{}{}
}

func (r *recent) turn(now time.Duration) {
	if r.now == nil || now-r.turned >= rememberFor {
		r.before, r.now, r.turned = r.now, map[Work]struct{}{}, now
	}
}

func (r *recent) has(w Work) bool {
	if _, ok := r.now[w]; ok {
		return true
	}
	_, ok := r.before[w]
	return ok
}
