package bus

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// The pieces of a streamed reply go to the owner of the call, and from there to the process that has accepted it. If
// one of these dies, the pieces on the way are lost, and nobody hears those that follow. So a member keeps what its
// work for a stored call says until the call has ended. Whoever follows the call elsewhere asks for it.

// What is kept of one piece of work, and of all in a process. Of work that says more nothing is kept: who follows it
// gets the rest when the call has ended.
const (
	saidMost = 1 << 20
	saidAll  = 32 << 20
)

// saidOnce is how many pieces an answer has at most: their lengths are in a header.
const saidOnce = 256

const (
	saidVerb = "said"
	// hdrSizes has the lengths of the pieces in an answer, between blanks.
	hdrSizes = "Shallot-Sizes"
)

// said are the pieces that one piece of work has sent, the first of them first. It is safe for concurrent use.
type said struct {
	all *atomic.Int64 // bytes of all work of the process

	mu     sync.Mutex
	pieces [][]byte
	bytes  int64
	over   bool // nothing is kept any more
}

// add keeps a piece, which nobody may change any more.
func (s *said) add(piece []byte) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	n := int64(len(piece) + deltaCost)
	s.bytes += n
	s.pieces = append(s.pieces, piece)
	if s.all.Add(n) > saidAll || s.bytes > saidMost {
		s.drop()
	}
}

// end forgets everything.
func (s *said) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *said) drop() {
	s.all.Add(-s.bytes)
	s.pieces, s.bytes, s.over = nil, 0, true
}

// after returns pieces from number n+1 on, of so many bytes together but at least one; none if there are no more, or if
// the first of them are not kept.
func (s *said) after(n, most int) (out [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for size := 0; n >= 0 && n < len(s.pieces) && len(out) < saidOnce; n++ {
		if size += len(s.pieces[n]); size > most && len(out) > 0 {
			break
		}
		out = append(out, s.pieces[n])
	}
	return out
}

// keepSaid begins to keep what a job says, if somebody may ask for it: its call is stored, and its caller reads pieces.
func (m *member) keepSaid(j *job, c *messages.Call) {
	if j.bound || !c.Stream || c.Kind != messages.Model {
		return
	}
	m.Lock()
	defer m.Unlock()
	if m.jobs[j.work] == j {
		j.said = &said{all: &m.said}
	}
}

// talks is the latest work for a call whose words are kept here; nil if there is none.
func (m *member) talks(tenant, call string) (found *job) {
	m.Lock()
	defer m.Unlock()
	for w, j := range m.jobs {
		if w.Call == call && j.said != nil && j.in.tenant == tenant && (found == nil || w.N > found.work.N) {
			found = j
		}
	}
	return found
}

// hearSaid serves the words of work to other processes.
func (m *member) hearSaid(s *subscriptions) error {
	if len(m.classes) == 0 {
		return nil
	}
	_, err := s.hear(m.n.subj.Said(), m.askedSaid)
	return err
}

// askedSaid answers with what work for a call has said after a piece. Who was asked by name says so if there is none.
func (m *member) askedSaid(msg *nats.Msg) {
	if !strings.HasPrefix(msg.Reply, m.n.replyRoot) {
		m.n.garbage(msg, "a question without a reply subject of an owner")
		return
	}
	tenant, _ := messages.Untoken(msg.Header.Get(hdrTenant))
	j := m.talks(tenant, msg.Header.Get(hdrCall))
	if j == nil {
		if msg.Subject != m.n.subj.Said() {
			m.n.send(&nats.Msg{Subject: msg.Reply})
		}
		return
	}
	source := m.n.opts.Name + "." + strconv.FormatUint(j.work.N, 10)
	of, n, _ := strings.Cut(msg.Header.Get(hdrDelta), " ")
	after := 0
	if of == source {
		after, _ = strconv.Atoi(n)
	}
	pieces := j.said.after(after, m.n.codec.payload-16<<10)
	sizes := make([]string, len(pieces))
	for i, p := range pieces {
		sizes[i] = strconv.Itoa(len(p))
	}
	m.n.send(&nats.Msg{Subject: msg.Reply, Data: bytes.Join(pieces, nil), Header: nats.Header{
		hdrDelta: {source + " " + strconv.Itoa(after)}, hdrSizes: {strings.Join(sizes, " ")}}})
}

// saidWait is how long somebody may take to answer who has the words of a call.
const saidWait = 500 * time.Millisecond

// Said returns what the target of a stored call has said after a piece, in order and without a gap: first after the
// zero Delta, then after the last one that was returned. It may be all that comes from another run of the target, which
// begins at its first piece. It is empty if there is nothing new, or nobody has it: the call does not run, or said more
// than is kept. Whether the caller may know is for who asks to find out.
func (n *Node) Said(ctx context.Context, tenant, call string, after pipeline.Delta) []pipeline.Delta {
	subject := n.subj.Said()
	if i := strings.LastIndexByte(after.Source, '.'); i > 0 {
		subject = n.subj.Process(after.Source[:i], saidVerb)
	}
	out, known := n.askSaid(ctx, subject, tenant, call, after)
	if !known && subject != n.subj.Said() && ctx.Err() == nil { // that process is gone, or the call runs elsewhere
		out, _ = n.askSaid(ctx, n.subj.Said(), tenant, call, after)
	}
	return out
}

// askSaid asks one process or all; known is false if nobody has work for the call in hand.
func (n *Node) askSaid(ctx context.Context, subject, tenant, call string, after pipeline.Delta) (out []pipeline.Delta,
	known bool) {
	ctx, cancel := context.WithTimeout(ctx, saidWait)
	defer cancel()
	got := make(chan *nats.Msg, 1)
	err := n.durable.ask.send(&nats.Msg{Subject: subject, Header: nats.Header{hdrCall: {call},
		hdrTenant: {messages.Token(tenant)}, hdrDelta: {after.Source + " " + strconv.Itoa(after.N)}}},
		func(m *nats.Msg) { got <- m })
	if err != nil {
		return nil, false
	}
	select {
	case m := <-got:
		return readSaid(m)
	case <-ctx.Done():
		return nil, false
	}
}

func readSaid(m *nats.Msg) (out []pipeline.Delta, known bool) {
	if m == nil {
		return nil, false
	}
	source, first, ok := strings.Cut(m.Header.Get(hdrDelta), " ")
	n, err := strconv.Atoi(first)
	if !ok || err != nil {
		return nil, false
	}
	rest := m.Data
	for _, size := range strings.Fields(m.Header.Get(hdrSizes)) {
		k, err := strconv.Atoi(size)
		if err != nil || k < 0 || k > len(rest) {
			return nil, false
		}
		n++
		out = append(out, pipeline.Delta{Source: source, N: n, Chunk: rest[:k:k]})
		rest = rest[k:]
	}
	return out, true
}
