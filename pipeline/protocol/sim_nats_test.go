package protocol

import (
	"fmt"
	"time"
)

const simAckWait = 15 * time.Second

// server is the model of NATS: one work queue, and buckets with revisions.
type server struct {
	w       *world
	up      bool
	queue   []*message
	ids     map[string]time.Duration // when each message id was stored last
	window  time.Duration            // in which that makes a duplicate
	pulls   []*proc
	rev     uint64
	records map[string]*Record
	made    map[string]time.Duration
	marks   map[string]*mark
}

// message is a message of the work queue.
type message struct {
	delivery Delivery
	due      time.Duration // of its next delivery while somebody holds it
	held     bool
	gone     bool
}

type mark struct {
	groups  []string
	expires time.Duration
}

func newServer(w *world) *server {
	return &server{w: w, up: true, ids: map[string]time.Duration{}, records: map[string]*Record{},
		made: map[string]time.Duration{}, marks: map[string]*mark{}}
}

// do carries an effect on a store out for a process and tells it what came of it. The request or the answer may get
// lost, and a late request may be carried out after its sender has given up.
func (s *server) do(p *proc, write bool, run func() Stored, then func(Stored)) {
	w := s.w
	unclear := func(d time.Duration) { p.after(d, func() { then(Stored{Result: Unclear}) }) }
	if !p.reachable() {
		unclear(100 * time.Millisecond)
		return
	}
	late := w.between(300*time.Microsecond, 3*time.Millisecond)
	if write && w.chance(w.net.crash) {
		if w.chance(0.5) {
			p.kill("a crash before it stored something")
			return
		}
		w.after(w.between(0, 2*late), func() { p.kill("a crash after it stored something") })
	}
	if w.chance(w.net.loss) {
		unclear(2 * time.Second)
		return
	}
	if w.chance(w.net.delay) {
		late += w.between(0, 4*time.Second)
	}
	w.after(late, func() {
		switch {
		case !s.up:
			unclear(2 * time.Second)
			return
		case write && w.net.diskFull && w.chance(0.3):
			unclear(2 * time.Second)
			return
		case write && w.net.diskFull:
			p.after(time.Millisecond, func() { then(Stored{Result: No}) })
			return
		}
		st := run()
		if w.chance(w.net.ackLoss) || late > 2*time.Second {
			unclear(max(0, 2*time.Second-late))
			return
		}
		w.after(w.between(300*time.Microsecond, 3*time.Millisecond), func() {
			if p.reachable() {
				p.do(func() { then(st) })
			} else {
				unclear(2 * time.Second)
			}
		})
	})
}

func (s *server) create(key string, r Record) Stored {
	if old := s.records[key]; old != nil {
		return Stored{Result: Exists, Record: *old}
	}
	return s.put(key, r)
}

func (s *server) put(key string, r Record) Stored {
	s.rev++
	r.Rev = s.rev
	if s.records[key] == nil {
		s.made[key] = s.w.now
	}
	s.records[key] = &r
	return Stored{Result: OK, Record: r}
}

func (s *server) update(key string, rev uint64, r Record) Stored {
	old := s.records[key]
	if old == nil || old.Rev != rev {
		return Stored{Result: Exists}
	}
	return s.put(key, r)
}

func (s *server) get(key string) Stored {
	if r := s.records[key]; r != nil {
		return Stored{Result: OK, Record: *r}
	}
	return Stored{Result: Missing}
}

// publish puts a call into the queue.
func (s *server) publish(d Delivery) Stored {
	id := fmt.Sprintf("%s.%d", d.Call, d.Generation)
	if at, twice := s.ids[id]; twice && s.w.now-at < s.window {
		return Stored{Result: OK}
	}
	s.ids[id] = s.w.now
	s.queue = append(s.queue, &message{delivery: d})
	s.w.log("queue has %s again=%v", id, d.Again)
	s.dispatch()
	return Stored{Result: OK}
}

func (s *server) pull(p *proc) {
	s.pulls = append(s.pulls, p)
	s.dispatch()
}

// dispatch hands what waits to who pulls. A pull of a process that is cut off without anybody's knowledge gets a
// message that never arrives.
func (s *server) dispatch() {
	if !s.up {
		return
	}
	for _, m := range s.queue {
		if m.held || m.gone {
			continue
		}
		p := s.puller()
		if p == nil {
			return
		}
		m.held, m.due = true, s.w.now+simAckWait
		m.delivery.Count++
		s.w.trapped(p, ownerIsGiven, s.w.byID[m.delivery.Call])
		d := m.delivery
		s.w.after(simAckWait, func() { s.expire(m) })
		s.w.after(s.w.between(300*time.Microsecond, 3*time.Millisecond), func() {
			if p.reachable() {
				p.do(func() { p.owner.delivered(m, d) })
			}
		})
	}
}

func (s *server) puller() *proc {
	for len(s.pulls) > 0 {
		i := s.w.rng.IntN(len(s.pulls))
		p := s.pulls[i]
		s.pulls = append(s.pulls[:i:i], s.pulls[i+1:]...)
		if p.connected() {
			return p
		}
	}
	return nil
}

// expire delivers a message again whose holder has not marked it.
func (s *server) expire(m *message) {
	switch {
	case m.gone || !m.held:
	case m.due > s.w.now:
		s.w.after(m.due-s.w.now, func() { s.expire(m) })
	case !s.up:
		s.w.after(100*time.Millisecond, func() { s.expire(m) })
	default:
		m.held = false
		s.dispatch()
	}
}

func (s *server) progress(messages []*message) {
	for _, m := range messages {
		if m.held && !m.gone {
			m.due = s.w.now + simAckWait
		}
	}
}

func (s *server) ack(messages []*message) {
	for _, m := range messages {
		m.gone = true
	}
	kept := s.queue[:0:0]
	for _, m := range s.queue {
		if !m.gone {
			kept = append(kept, m)
		}
	}
	s.queue = kept
}

// markUp stores the mark of a process.
func (s *server) markUp(p *proc, groups []string) Stored {
	m := s.marks[p.name]
	if m == nil {
		m = &mark{groups: groups}
		s.marks[p.name] = m
		s.tell(p.name, func(q *proc) { q.marked(p.name, groups) })
		s.watch(p.name, m)
	}
	m.expires = s.w.now + 10*time.Second
	return Stored{Result: OK}
}

func (s *server) watch(name string, m *mark) {
	s.w.after(time.Second, func() {
		switch {
		case s.marks[name] != m:
		case s.up && s.w.now >= m.expires:
			s.unmark(name, false)
		default:
			s.watch(name, m)
		}
	})
}

func (s *server) unmark(name string, deleted bool) {
	if s.marks[name] != nil {
		delete(s.marks, name)
		s.w.log("mark of %s is gone, deleted=%v", name, deleted)
		s.tell(name, func(q *proc) { q.unmarked(name, deleted) })
	}
}

// tell says to all watchers who are connected what changed. Who is not sees it when they come back.
func (s *server) tell(name string, f func(*proc)) {
	for _, q := range s.w.procs {
		if q.reachable() && q.name != name {
			s.w.after(time.Millisecond, func() {
				if q.reachable() {
					q.do(func() { f(q) })
				}
			})
		}
	}
}
