package trail

import "time"

// What a stream costs, it costs by the message, so records share one where there are many: more than one in gatherTime,
// and gatherFree more.
const (
	gatherTime  = 5 * time.Millisecond
	gatherFree  = 64
	gatherBytes = 64 << 10
)

// gathered are the records of one subject that wait for the next message.
type gathered struct {
	id   string // of the only record
	data []byte
	size int // of the last message
	n    int
	next time.Time // when the next message may be sent
	late *time.Timer
}

// Gather is [Trail.Publish] for records of which there may be many. Where they are few each has a message of its own at
// once; where they are many they wait for up to gatherTime, and a message holds several, one a line. So data must not
// have line ends. It may be used again when Gather has returned. A record that shares its message is stored again where
// it is written again: its id is only in the record.
func (t *Trail) Gather(subject, id string, data []byte) {
	t.mu.Lock()
	g := t.open[subject]
	if g == nil {
		g = &gathered{}
		t.open[subject] = g
	}
	before := t.make(subject, g, g.n > 0 && len(g.data)+len(data) >= gatherBytes)
	if g.n > 0 {
		g.data = append(g.data, '\n')
	} else {
		g.data = make([]byte, 0, max(len(data), min(g.size+g.size/4, gatherBytes)))
	}
	if g.id = id; g.n > 0 {
		g.id = ""
	}
	g.data, g.n = append(g.data, data...), g.n+1
	pause := time.Until(g.next)
	now := t.make(subject, g, pause <= 0 || len(g.data) >= gatherBytes)
	switch {
	case g.n != 1: // none waits, or somebody has set the timer
	case g.late == nil:
		g.late = time.AfterFunc(pause, func() { t.flush(subject) })
	default:
		g.late.Reset(pause)
	}
	t.mu.Unlock()
	t.send(before)
	t.send(now)
}

// make makes a message of what waits, if it is to be sent. The lock is held.
func (t *Trail) make(subject string, g *gathered, due bool) sending {
	if !due || g.n == 0 {
		return sending{}
	}
	r := record{subject, g.id, g.data, g.n, time.Now()}
	if saved := r.at.Add(-gatherFree * gatherTime); g.next.Before(saved) {
		g.next = saved
	}
	g.id, g.data, g.size, g.n, g.next = "", nil, len(r.data), 0, g.next.Add(gatherTime)
	return t.begin(r)
}

func (t *Trail) flush(subject string) {
	t.mu.Lock()
	s := t.make(subject, t.open[subject], true)
	t.mu.Unlock()
	t.send(s)
}

// flushAll sends whatever waits.
func (t *Trail) flushAll() {
	t.mu.Lock()
	var out []sending
	for subject, g := range t.open {
		out = append(out, t.make(subject, g, true))
	}
	t.mu.Unlock()
	for _, s := range out {
		t.send(s)
	}
}
