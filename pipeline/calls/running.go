package calls

import "slices"

// mostLive is how many running calls one process tells of.
const mostLive = 200

// Running returns the calls that run in this process, the newest first: one of them with its steps, or all without. An
// empty tenant means any.
func (r *Recorder) Running(tenant, call string) []Story {
	r.mu.Lock()
	var found []*watch
	if w := r.running[call]; w != nil {
		found = append(found, w)
	} else if call == "" {
		for _, w := range r.running {
			found = append(found, w)
		}
	}
	r.mu.Unlock()
	out := []Story{}
	for _, w := range found {
		if s, ok := w.now(call != ""); ok && (tenant == "" || tenant == s.Tenant) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Story) int { return b.Accepted.Compare(a.Accepted) })
	return out[:min(len(out), mostLive)]
}
