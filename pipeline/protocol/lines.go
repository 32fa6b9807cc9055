package protocol

import "time"

// line is where work waits for a class of members that is full or absent: in order, and in turn between tenants.
type line struct {
	class   string
	full    bool          // every member said that it is busy; until one says that it has room
	absent  int           // how often nobody was there
	since   time.Duration // of the last try while full or absent
	tenants []*tenant     // those that wait, in turn
	byName  map[string]*tenant
	length  int
	done    time.Duration // when work of this class last ended here
	every   time.Duration // smoothed time between two ends
}

type tenant struct {
	name string
	runs []*run
}

func newLine(class string) *line { return &line{class: class, byName: map[string]*tenant{}} }

func (l *line) open() bool { return !l.full && l.absent == 0 && l.length == 0 }

func (l *line) join(r *run) {
	t := l.byName[r.spec.Tenant]
	if t == nil {
		t = &tenant{name: r.spec.Tenant}
		l.byName[t.name] = t
		l.tenants = append(l.tenants, t)
	}
	t.runs = append(t.runs, r)
	l.length++
}

// first puts a run back that was offered and found no room.
func (l *line) first(r *run) {
	t := l.byName[r.spec.Tenant]
	if t == nil {
		t = &tenant{name: r.spec.Tenant}
		l.byName[t.name] = t
		l.tenants = append([]*tenant{t}, l.tenants...)
	}
	t.runs = append([]*run{r}, t.runs...)
	l.length++
}

// next takes the first run of the tenant whose turn it is.
func (l *line) next() *run {
	if l.length == 0 {
		return nil
	}
	t := l.tenants[0]
	l.tenants = l.tenants[1:]
	r := t.runs[0]
	t.runs = t.runs[1:]
	if len(t.runs) == 0 {
		delete(l.byName, t.name)
	} else {
		l.tenants = append(l.tenants, t)
	}
	l.length--
	return r
}

func (l *line) leave(r *run) {
	t := l.byName[r.spec.Tenant]
	if t == nil {
		return
	}
	for i, other := range t.runs {
		if other != r {
			continue
		}
		t.runs = append(t.runs[:i:i], t.runs[i+1:]...)
		l.length--
		break
	}
	if len(t.runs) > 0 {
		return
	}
	delete(l.byName, t.name)
	for i, other := range l.tenants {
		if other == t {
			l.tenants = append(l.tenants[:i:i], l.tenants[i+1:]...)
			return
		}
	}
}

// ended measures how fast work of the class ends.
func (l *line) ended(now time.Duration) {
	if l.done > 0 {
		l.every += (now - l.done - l.every) / 8
	}
	l.done = now
}

// wait is how long a run that joins now is expected to wait. Without a measure it is 0: nobody is refused on a guess.
func (l *line) wait() time.Duration { return time.Duration(l.length) * l.every }
