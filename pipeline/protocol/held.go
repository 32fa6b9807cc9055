package protocol

import (
	"slices"
	"time"
)

// Resumes puts calls whose hold was decided into the queue again. The decision is in the record before that, so
// whoever finds a decided record later may resume it too: duplicates are looked up before they run.
type Resumes struct {
	hearing *Hearing
	ops     *uint64
	order   []*resume
}

type resume struct {
	call       string
	generation uint64
	// first says that no copy of this generation can have been put into the queue before.
	first bool
	again time.Duration
	tries int
	done  bool
	op    uint64
}

// Resume puts the call that was held at the generation into the queue as the next generation. first says that the
// caller has just written the decision into its record: its copy, if it comes through at once, is the only one, and
// whoever gets it need not ask whether others have the call.
func (s *Resumes) Resume(now time.Duration, call string, generation uint64, first bool, out []Effect) []Effect {
	for _, r := range s.order {
		if r.call == call && r.generation == generation {
			return out
		}
	}
	r := &resume{call: call, generation: generation, first: first}
	s.order = append(s.order, r)
	return s.put(now, r, out)
}

func (s *Resumes) put(now time.Duration, r *resume, out []Effect) []Effect {
	*s.ops++
	again := !r.first
	r.op, r.again, r.first = *s.ops, now, false
	return append(out, Effect{Kind: PutCall, Call: r.call, N: r.generation + 1, Again: again, Op: r.op})
}

// Stored takes the result of an effect. It reports whether the effect was one of these.
func (s *Resumes) Stored(e Effect, st Stored) bool {
	for _, r := range s.order {
		if r.op == e.Op {
			r.op, r.done = 0, st.Result == OK
			r.tries++
			return true
		}
	}
	return false
}

func (s *Resumes) tick(now time.Duration, out []Effect) []Effect {
	s.order = slices.DeleteFunc(s.order, func(r *resume) bool { return r.done })
	for _, r := range s.order {
		waited := now - r.again
		if s.hearing.up && (waited >= readEvery || r.op == 0 && waited >= backoff(r.tries)) {
			out = s.put(now, r, out)
		}
	}
	return out
}
