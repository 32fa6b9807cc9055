package messages

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// HopVersion is the version of questions and answers, which this build reads and writes.
const HopVersion = 2

// Carry says what a question contains besides the facts of its call, its notes, its fault and the stage's state.
type Carry struct {
	// Request, Reply and Kept are the bodies: Kept is the request as it was when the call passed the stage.
	Request, Reply, Kept bool
	// Slip is the whole route, with what ran and how long it took, but without the private states of other stages.
	Slip bool
}

// Question asks a process that serves a stage to run one of its phases. One goroutine uses it.
type Question struct {
	// Call is the call as the stage may see it: the phase runs on it and changes it. Bodies that the question does not
	// contain read as absent, but HasReply and Sizes know of them. Facts that only the owner has read as absent too:
	// the idempotency key, its fingerprint, reply addresses, stages to skip. Without Carry.Slip its slip has the stage
	// that is asked and, of those around it, only their attempts; names, costs and the path are not there.
	Call *Call
	// Until is when the owner stops waiting for the answer; zero if it never does.
	Until time.Time

	names        [3]int // the line of request, reply and kept as they came, counted from 1; 0 if there is none
	came         []body
	notes        Notes
	state, fault []byte
	missed       atomic.Uint32
}

// Missed names the bodies that the stage tried to read and that the question did not contain. A stage that declares
// everything it reads misses none.
func (q *Question) Missed() (names []string) {
	for i, name := range []string{RequestBody, ReplyBody, "kept"} {
		if q.missed.Load()>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return names
}

// Ask writes the question for the phase that the call's slip names. It changes nothing.
func (c *Call) Ask(carry Carry, until time.Time) ([]byte, error) {
	stage, phase := c.Slip.Stage()
	if stage == "" {
		return nil, fmt.Errorf("wire: the call is at %s, where no stage is to be asked", c.Slip.Where())
	}
	kept := KeptPrefix + stage
	t := tableOf(&c.bodies, func(name string) bool {
		return carry.Request && name == RequestBody || carry.Reply && name == ReplyBody || carry.Kept && name == kept
	})
	w := newWriter(make([]byte, 0, lineSize+t.size()))
	w.call(c, HopVersion, false)
	if !until.IsZero() {
		w.time("until", until)
	}
	if carry.Slip {
		w.slip(&c.Slip, false)
	} else {
		w.place(&c.Slip, stage, phase)
	}
	w.notes("notes", c.Notes)
	if c.Fault != nil {
		w.fault("fault", c.Fault)
	}
	w.away(&c.bodies, &t, kept)
	t.write(&w)
	w.Close('}')
	if w.err != nil {
		return nil, w.err
	}
	return t.follow(w.B), nil
}

// place writes where the call is, for a stage that does not read the route.
func (w *writer) place(s *Slip, stage string, phase Phase) {
	w.Text("stage", stage)
	w.Text("phase", string(phase))
	w.Flag("mandatory", s.Stops[s.At].Mandatory)
	around := s.Frames
	if s.Back && len(around) > 0 {
		around = around[:len(around)-1]
		w.Int("attempt", int64(s.attempt()))
	}
	w.frames("around", len(around), func(i int) (int, bool) { return around[i].Attempt, true })
	w.frames("again", len(around), func(i int) (int, bool) { return i, s.Stops[around[i].Stop].Keep })
	w.Number("hops", int64(s.Hops))
	w.Number("tries", int64(s.Tries))
	w.Number("runs", int64(s.Runs))
	w.raw("state", s.state())
}

// frames writes a list of numbers, one for each frame that has one.
func (w *writer) frames(key string, n int, number func(i int) (int, bool)) {
	open := false
	for i := range n {
		if v, ok := number(i); ok {
			if !open {
				w.Open(key, '[')
				open = true
			}
			w.Comma()
			w.B = strconv.AppendUint(w.B, uint64(v), 10)
		}
	}
	if open {
		w.Close(']')
	}
}

// away names the bodies that stay with the owner, with their sizes.
func (w *writer) away(b *bodies, t *table, kept string) {
	open := false
	for _, name := range []string{RequestBody, ReplyBody, kept} {
		i, ok := b.names[name]
		if !ok || t.has(name) {
			continue
		}
		if !open {
			w.Open("away", '{')
			open = true
		}
		w.Comma()
		w.B = strconv.AppendUint(append(rawjson.AppendQuoted(w.B, name), ':'), uint64(b.lines[i].size), 10)
	}
	if open {
		w.Close('}')
	}
}

// place is where a question says that its call is.
type place struct {
	stage         string
	phase         Phase
	mandatory     bool
	attempt       int
	around, again []int
	hops, tries   int
	runs          int
	state         json.RawMessage
}

// ReadQuestion reads a question as strictly as [Unmarshal] reads a call. Bodies are trusted to be the JSON that the
// owner checked when the call came in. Everything shares memory with data.
func ReadQuestion(data []byte) (*Question, error) {
	first, rest, more := cutLine(data)
	if err := opens(first); err != nil {
		return nil, err
	}
	c, t, p, r, version := &Call{}, table{}, place{}, newReader(first), 0
	q := &Question{Call: c}
	var away []tableName
	r.object(func(key string) bool {
		switch key {
		case "v":
			version = r.version(HopVersion)
		case "until":
			q.Until = r.time()
		case "fault":
			r.space()
			from := r.i
			c.Fault = r.fault()
			q.fault = r.b[from:r.i]
		case "away":
			r.each(func(name string) { away = append(away, tableName{name, r.int()}) })
		case "bodies":
			r.tableNames(&t)
		case "lines":
			r.tableLines(&t)
		default:
			return r.field(c, key) || r.place(&p, key)
		}
		return true
	})
	if r.end(version, HopVersion); r.err != nil {
		return nil, r.err
	}
	if err := t.fill(rest, more); err != nil {
		return nil, err
	}
	return q, q.build(&t, &p, away)
}

func (r *reader) place(p *place, key string) (known bool) {
	numbers := func() []int {
		out := make([]int, 0, 8)
		r.list(func() { out = append(out, r.int()) })
		return out
	}
	switch key {
	case "stage":
		p.stage = r.text()
	case "phase":
		p.phase = Phase(r.text())
	case "mandatory":
		p.mandatory = r.flag()
	case "attempt":
		p.attempt = r.int()
	case "around":
		p.around = numbers()
	case "again":
		p.again = numbers()
	case "hops":
		p.hops = r.int()
	case "tries":
		p.tries = r.int()
	case "runs":
		p.runs = r.int()
	case "state":
		p.state = r.raw()
	default:
		return false
	}
	return true
}

// build makes the call and remembers its state, so that Answer can compare.
func (q *Question) build(t *table, p *place, away []tableName) error {
	c := q.Call
	if p.stage != "" {
		slip, err := p.slip()
		if err != nil {
			return err
		}
		c.Slip = slip
	}
	stage, _ := c.Slip.Stage()
	if err := c.check(); err != nil {
		return err
	}
	if stage == "" {
		return fmt.Errorf("wire: the question names no stage")
	}
	for _, a := range away {
		t.lines = append(t.lines, body{size: a.line, away: true})
		t.names = append(t.names, tableName{a.name, len(t.lines)})
	}
	for i := range t.lines {
		t.lines[i].from = i + 1
	}
	for _, n := range t.names {
		if n.name != RequestBody && n.name != ReplyBody && n.name != KeptPrefix+stage {
			return fmt.Errorf("wire: the question has the body %q, which is not the stage's", n.name)
		}
	}
	var err error
	if c.bodies, err = t.bodies(); err != nil {
		return err
	}
	c.bodies.missed = &q.missed
	if len(c.bodies.names) != len(t.names) {
		return fmt.Errorf("wire: the question names a body twice")
	}
	q.came = slices.Clone(c.bodies.lines)
	for _, n := range t.names {
		q.names[rank(n.name)] = n.line
	}
	q.notes, q.state = maps.Clone(c.Notes), c.Slip.state()
	return nil
}

// slip makes a slip that says only what the place says: the stages around have no names.
func (p *place) slip() (s Slip, err error) {
	if p.phase != Before && p.phase != After {
		return s, fmt.Errorf("wire: phase %q; known: before, after", p.phase)
	}
	n := len(p.around)
	s = Slip{At: n, Hops: p.hops, Tries: p.tries, Runs: p.runs, Stops: make([]Stop, n+1), Frames: make([]Frame, 0, n+1)}
	for i, attempt := range p.around {
		s.Frames = append(s.Frames, Frame{Stop: i, Attempt: attempt})
	}
	for _, i := range p.again {
		if i < 0 || i >= n {
			return s, fmt.Errorf("wire: stage %d of %d around may say Again", i, n)
		}
		s.Stops[i].Keep = true
	}
	s.Stops[n] = Stop{Name: p.stage, Mandatory: p.mandatory, Before: p.phase == Before, After: p.phase == After}
	if p.phase == Before {
		s.Scratch = p.state
		return s, nil
	}
	s.Back = true
	s.Frames = append(s.Frames, Frame{Stop: n, Attempt: p.attempt, State: p.state})
	return s, nil
}
