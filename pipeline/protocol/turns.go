package protocol

import "container/heap"

// turns is work that waits, in turn between tenants: the first of each tenant, then the second of each. However much
// one tenant has waiting, another's first work is the next but one. Its methods cost the logarithm of a tenant's work,
// because ten thousand calls may join, come back and leave in the same moment.
type turns[T any] struct {
	tenants []*tenant[T] // those that have something waiting, whose turn it is in front
	byName  map[string]*tenant[T]
	length  int
	tickets uint64
}

// tenant is the work of one, by ticket.
type tenant[T any] struct {
	name  string
	works []*place[T]
}

// place is where something waits. The ticket is drawn when it comes, so that what comes back from an offer that was not
// taken stands where it would have stood.
type place[T any] struct {
	of     T
	tenant *tenant[T] // nil while it does not wait
	ticket uint64
	at     int
}

func newTurns[T any]() turns[T] { return turns[T]{byName: map[string]*tenant[T]{}} }

// draw gives p its ticket, if it has none.
func (t *turns[T]) draw(p *place[T]) {
	if p.ticket == 0 {
		t.tickets++
		p.ticket = t.tickets
	}
}

// join puts p in line for its tenant.
func (t *turns[T]) join(name string, p *place[T]) {
	who := t.byName[name]
	if who == nil {
		who = &tenant[T]{name: name}
		t.byName[name] = who
		t.tenants = append(t.tenants, who)
	}
	t.draw(p)
	p.tenant = who
	heap.Push(who, p)
	t.length++
}

// next takes the first work of the tenant whose turn it is. It reports false where nothing waits.
func (t *turns[T]) next() (of T, ok bool) {
	if t.length == 0 {
		return of, false
	}
	who := t.tenants[0]
	t.tenants = t.tenants[1:]
	p, _ := heap.Pop(who).(*place[T])
	p.tenant = nil
	t.length--
	if len(who.works) == 0 {
		delete(t.byName, who.name)
	} else {
		t.tenants = append(t.tenants, who)
	}
	return p.of, true
}

// leave takes p out, if it waits.
func (t *turns[T]) leave(p *place[T]) {
	who := p.tenant
	if who == nil {
		return
	}
	heap.Remove(who, p.at)
	p.tenant = nil
	t.length--
	if len(who.works) > 0 {
		return
	}
	delete(t.byName, who.name)
	for i, other := range t.tenants {
		if other == who {
			t.tenants = append(t.tenants[:i:i], t.tenants[i+1:]...)
			return
		}
	}
}

// ahead is how many are served before what the tenant would add now.
func (t *turns[T]) ahead(name string) (n int) {
	own := 0
	if who := t.byName[name]; who != nil {
		own = len(who.works)
	}
	for _, who := range t.tenants {
		if who.name == name {
			n += own
		} else {
			n += min(len(who.works), own+1)
		}
	}
	return n
}

// Len, Less, Swap, Push and Pop implement heap.Interface.

func (w *tenant[T]) Len() int { return len(w.works) }

func (w *tenant[T]) Less(i, j int) bool { return w.works[i].ticket < w.works[j].ticket }

func (w *tenant[T]) Swap(i, j int) {
	w.works[i], w.works[j] = w.works[j], w.works[i]
	w.works[i].at, w.works[j].at = i, j
}

func (w *tenant[T]) Push(x any) {
	p, _ := x.(*place[T])
	p.at = len(w.works)
	w.works = append(w.works, p)
}

func (w *tenant[T]) Pop() any {
	last := len(w.works) - 1
	p := w.works[last]
	w.works[last] = nil
	w.works = w.works[:last]
	return p
}
