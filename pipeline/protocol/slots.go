package protocol

import "time"

// slots are those of a class at a member, and what waits for one.
type slots struct {
	class    string
	used     int
	with     *shared
	queue    turns[*work]  // in turn between tenants
	told     time.Duration // when free slots were last published
	wasFull  bool          // since then nobody was told that there is room
	refused  time.Duration // when an offer last found no room, or took the last
	capacity int
}

func (s *slots) free() int { return s.with.slots - s.with.used }

// shared is how much work of some classes is done at once, all of them together.
type shared struct {
	slots, used int
	classes     []*slots
}

// room is how many offers more of a class would be taken. The queue counts: what waits in it begins without a round
// trip. It is 0 while twice the bound of outcomes is kept: neither their owners nor the bucket takes them.
func (s *Works) room(c *slots) int {
	if s.bytes > 2*s.cfg.KeepBytes {
		return 0
	}
	return c.free() + c.capacity - c.queue.length
}

// Serve says how much work of a class the member does at once.
func (s *Works) Serve(class string, n int) { s.ServeWith(class, n, class) }

// ServeWith says how much work the member does at once of all classes that are served with the same name; the first
// one's number counts.
func (s *Works) ServeWith(class string, n int, name string) {
	if s.pools == nil {
		s.pools = map[string]*shared{}
	}
	with := s.pools[name]
	if with == nil {
		with = &shared{slots: n}
		s.pools[name] = with
	}
	c := &slots{class: class, with: with, capacity: s.cfg.QueueCapacity, queue: newTurns[*work]()}
	with.classes = append(with.classes, c)
	s.classes[class] = c
	s.named = append(s.named, c)
}

// leaveSlot gives the slot to the next in the queue, and in turn to those of the classes that share it.
func (s *Works) leaveSlot(now time.Duration, w *work, out []Effect) []Effect {
	if !w.slot {
		return out
	}
	w.slot = false
	return s.release(now, s.classes[w.offer.Class], out)
}

func (s *Works) release(now time.Duration, c *slots, out []Effect) []Effect {
	with := c.with
	c.used--
	with.used--
	for _, c := range with.classes {
		out = s.fill(now, c, out)
	}
	if len(with.classes) > 1 { // another one is first the next time
		with.classes = append(with.classes[1:], with.classes[0])
	}
	for _, c := range with.classes {
		// An offer may be on its way into the room that was told of before: as long as somebody may wait, each end is told.
		if s.room(c) > 0 && (c.wasFull || c.refused > 0 && now-c.refused < time.Second) {
			c.wasFull, c.told = false, now
			out = append(out, Effect{Kind: Free, Group: c.class, Free: int32(s.room(c))})
		}
	}
	return out
}

// Enter takes a slot for work that is not offered, because its owner is this process and runs it itself. It reports
// false where there is none, or others wait for one. [Works.Exit] gives it back.
func (s *Works) Enter(now time.Duration, class string) bool {
	c := s.classes[class]
	if c == nil || c.free() <= 0 || c.queue.length > 0 || s.room(c) <= 0 {
		return false
	}
	if s.room(c) == 1 { // as for an offer
		c.wasFull, c.refused = true, now
	}
	c.used++
	c.with.used++
	return true
}

// Exit gives back the slot that Enter took.
func (s *Works) Exit(now time.Duration, class string, out []Effect) []Effect {
	return s.release(now, s.classes[class], out)
}

// fill begins what waits for a slot, as far as there are some.
func (s *Works) fill(now time.Duration, c *slots, out []Effect) []Effect {
	for c.free() > 0 && c.queue.length > 0 {
		next, _ := c.queue.next()
		if now >= next.until || s.ownerGone(next) {
			out = s.drop(now, next, out)
			continue
		}
		out = s.begin(now, c, next, out)
	}
	return out
}

func (s *Works) unqueue(w *work) {
	s.classes[w.offer.Class].queue.leave(&w.place)
}
