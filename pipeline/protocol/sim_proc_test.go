package protocol

import (
	"slices"
	"time"
)

// What owners and members of the simulation have in common: marks, ticks, connections.

func (p *proc) presence() *Presence {
	if p.owner != nil {
		return p.owner.o.Presence
	}
	return p.member.m.Presence
}

func (p *proc) marked(name string, groups []string) {
	now := p.clock()
	if p.owner != nil {
		p.owner.beat()
		p.owner.out(p.owner.o.Marked(now, name, groups, nil))
		return
	}
	p.member.beat()
	out, _ := p.member.m.Presence.Marked(now, name, groups, nil)
	p.member.out(out)
}

func (p *proc) unmarked(name string, deleted bool) {
	if p.owner != nil {
		p.owner.beat()
		p.owner.o.Unmarked(p.clock(), name, deleted)
		return
	}
	p.member.beat()
	p.member.m.Presence.Unmarked(p.clock(), name, deleted)
}

// resync reads all marks, as a watcher does that begins anew.
func (p *proc) resync() {
	s := p.w.nats
	for _, q := range p.w.procs {
		if m := s.marks[q.name]; m != nil && q != p {
			p.marked(q.name, m.groups)
		}
	}
	for _, m := range slices.Clone(p.presence().order) {
		if s.marks[m.name] == nil && m.marked {
			p.unmarked(m.name, false)
		}
	}
}

// refresh keeps the own mark.
func (p *proc) refresh() {
	if p.reachable() {
		var groups []string
		if p.member != nil {
			groups = p.member.groups
		}
		p.w.nats.do(p, true, func() Stored { return p.w.nats.markUp(p, groups) }, func(st Stored) {
			if st.Result == OK {
				p.presence().Refreshed(p.clock())
			}
		})
	}
	p.after(3*time.Second, p.refresh)
}

// tick runs the process's clock.
func (p *proc) tick() {
	var next time.Duration
	if p.owner != nil {
		p.owner.beat()
		p.owner.out(p.owner.o.Tick(p.clock(), p.owner.take()))
		next = p.owner.o.Next(p.clock())
	} else {
		p.member.beat()
		p.member.out(p.member.m.Tick(p.clock(), p.member.take()))
		next = p.member.m.Next(p.clock())
	}
	p.after(next-p.clock(), p.tick)
}

func (p *proc) start() {
	p.alive, p.born, p.tokens = true, p.w.now, map[string][]*message{}
	p.w.procs = append(p.w.procs, p)
	p.w.log("%s starts", p.name)
	p.refresh()
	if !p.reachable() {
		p.known = true
		p.downNow()
		p.tick()
		return
	}
	p.upNow()
	p.tick()
}

func (p *proc) upNow() {
	p.w.log("%s is connected", p.name)
	p.resync()
	if p.owner != nil {
		p.owner.up()
	} else {
		p.member.out(p.member.m.Up(p.clock(), nil))
	}
}

func (p *proc) downNow() {
	p.w.log("%s knows that it is cut off", p.name)
	if p.owner != nil {
		p.owner.o.Down()
	} else {
		p.member.out(p.member.m.Down(p.clock(), nil))
	}
}

func (p *proc) kill(why string) {
	if !p.alive {
		return
	}
	w := p.w
	w.log("%s dies: %s", p.name, why)
	p.alive = false
	if p.owner != nil {
		p.owner.died()
	}
	w.after(w.between(time.Second, 10*time.Second), func() { w.spawn(p.base, p.owner != nil) })
}

func (p *proc) freeze(d time.Duration) {
	if !p.alive || p.frozen {
		return
	}
	p.w.log("%s is stopped for %v", p.name, d)
	p.frozen = true
	p.w.after(d, func() {
		if !p.alive {
			return
		}
		p.w.log("%s wakes", p.name)
		p.frozen, p.troubled = false, p.w.now
		buffered := p.buffered
		p.buffered = nil
		for i, f := range buffered {
			if p.frozen { // it was stopped again while it read what had waited
				p.buffered = append(buffered[i:], p.buffered...)
				return
			}
			p.do(f)
		}
	})
}

// cutOff loses the connection: at once, or after the missing pings; and it comes back after d.
func (p *proc) cutOff(d time.Duration) {
	w := p.w
	if !p.alive || p.cut {
		return
	}
	w.log("%s is cut off for %v", p.name, d)
	p.cut, p.own = true, true
	noticed := func() {
		if p.alive && p.cut && !p.known {
			p.known = true
			p.do(p.downNow)
		}
	}
	w.after(min(w.between(0, 4*time.Second), d-time.Millisecond), noticed)
	w.after(d, func() {
		noticed()
		p.cut = false
		w.log("%s can be reached again", p.name)
		p.reconnect()
	})
}

// reconnect ends an outage, of the process's own or of the server, as soon as the server is there.
func (p *proc) reconnect() {
	w := p.w
	w.after(50*time.Millisecond+time.Duration(w.rng.Int64N(int64(2800*time.Millisecond))), func() {
		switch {
		case !p.alive || !p.known:
		case !p.reachable():
			p.reconnect()
		default:
			p.known = false
			if p.own {
				p.own, p.troubled = false, w.now
			}
			p.do(p.upNow)
		}
	})
}
