package bus

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// replies is the one subscription on which an owner hears members, its own probes, and the server's "no responders".
// Below its root the subject says what a message is:
//
//	<n>[.<to>].<member>                  the answer to question n, which was sent to the group or to the member <to>
//	<n>[.<to>]                           nobody was there for question n
//	out.<call>.<n>.<state>.<member>      the outcome of work
//	chunk.<call>.<n>.<i>.<member>        the i-th piece of a streamed reply
//	offer.<call>.<n>.<seq>[.<to>]        nobody was there for an offer
//	busy.<call>.<n>.<seq>.<member>       no room for an offer
//	has.<call>.<n>.<yes>.<member>        who holds work
//	list.<member>                        what a member has in hand
//	pong.<at>.<to>[.<member>]            a process lives, or does not listen
//	probe.<at>                           the owner hears itself
//	stored...                            of stored calls, see durables
type replies struct {
	n       *Node
	root    string
	sub     *nats.Subscription
	lost    int
	ignored atomic.Int64 // unknown messages, and answers that cannot be read or are of another version
}

func newReplies(n *Node) *replies {
	return &replies{n: n, root: n.subj.Reply(n.opts.Name, secret(16))}
}

func (r *replies) subscribe(s *subscriptions) (err error) {
	if r.sub, err = s.hear(r.root+".>", r.heard); err != nil {
		return err
	}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		if _, err := s.hear(r.n.subj.Control("capacity", string(kind), "*"), r.capacity); err != nil {
			return err
		}
	}
	return nil
}

// question is where the answer to question n goes.
func (r *replies) question(n uint64, to string) string {
	b := append(make([]byte, 0, len(r.root)+len(to)+22), r.root...)
	b = strconv.AppendUint(append(b, '.'), n, 10)
	if to != "" {
		b = append(append(b, '.'), to...)
	}
	return string(b)
}

// dropped reports whether the client lost messages since the last time it was asked.
func (r *replies) dropped() bool {
	lost, err := r.sub.Dropped()
	was := r.lost
	if err == nil {
		r.lost = lost
	}
	return r.lost > was
}

// nobody reports whether the server says that a message had no receiver.
func nobody(m *nats.Msg) bool { return len(m.Data) == 0 && m.Header.Get("Status") == "503" }

func (r *replies) heard(m *nats.Msg) {
	rest := strings.TrimPrefix(m.Subject, r.root+".")
	if strings.HasPrefix(rest, storedReplies+".") {
		r.n.durable.heard(m)
		return
	}
	if rest == "" {
		r.ignored.Add(1)
		return
	}
	if rest[0] >= '0' && rest[0] <= '9' {
		r.answer(m, rest)
		return
	}
	word, args := cut(rest)
	if known := r.word(m, word, args); !known {
		r.ignored.Add(1)
	}
}

func (r *replies) answer(m *nats.Msg, rest string) {
	number, to := cut(rest)
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case err != nil:
		r.ignored.Add(1)
	case nobody(m):
		r.n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			return r.n.owns.Asks.NoResponders(now, n, to, out)
		})
	case m.Header.Get(hdrWire) != wireVersion:
		r.ignored.Add(1)
	default:
		a, err := messages.ReadAnswer(m.Data)
		if err != nil { // who wrote it is none of ours: it must not take the place of the answer
			r.foreign(m, err)
			return
		}
		r.n.onion.hops.answered(n, last(to), a)
	}
}

// word takes whatever is not an answer to a question. It reports false for what it does not know.
func (r *replies) word(m *nats.Msg, word, args string) bool {
	n, t := r.n, strings.Split(args, ".")
	member := t[len(t)-1]
	switch {
	case word == "chunk" && len(t) == 4:
		r.chunk(m, t)
	case word == "out" && len(t) == 4:
		r.out(m, t)
	case word == "offer" && len(t) >= 3 && nobody(m):
		to := strings.Join(t[3:], ".")
		n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			return n.owns.Runs.NoResponders(now, t[0], number(t[2]), to, out)
		})
	case word == "busy" && len(t) == 4:
		n.busy(protocol.Work{Call: t[0], N: number(t[1])}, number(t[2]), member)
	case word == "has" && len(t) == 4:
		n.has(protocol.Work{Call: t[0], N: number(t[1])}, member, t[2] == "true")
	case word == "list" && len(t) == 1:
		var l inHand
		if json.Unmarshal(m.Data, &l) != nil {
			return false
		}
		n.shown(member, l)
	case word == "pong" && len(t) == 2 && nobody(m):
		n.away(member)
	case word == "pong" && len(t) == 3:
		n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			n.owns.Presence.Pong(now, member, time.Duration(number(t[0])), time.Duration(number(string(m.Data))))
			return out
		})
		n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			n.member.m.Presence.Pong(now, member, time.Duration(number(t[0])), time.Duration(number(string(m.Data))))
			return out
		})
	case word == "probe" && len(t) == 1:
		n.owner.do(func(_ time.Duration, out []protocol.Effect) []protocol.Effect {
			n.owns.Hearing.Probed(time.Duration(number(t[0])))
			return out
		})
		n.member.do(func(_ time.Duration, out []protocol.Effect) []protocol.Effect {
			n.member.m.Hearing.Probed(time.Duration(number(t[0])))
			return out
		})
		n.durable.heardItself()
	default:
		return false
	}
	return true
}

func (r *replies) chunk(m *nats.Msg, t []string) {
	d := pipeline.Delta{Source: t[3] + "." + t[1], N: int(number(t[2])), Chunk: m.Data, Marks: marksOf(m.Header)}
	r.n.chunk(protocol.Work{Call: t[0], N: number(t[1])}, t[3], d)
}

func (r *replies) out(m *nats.Msg, t []string) {
	if m.Header.Get(hdrWire) != wireVersion {
		r.ignored.Add(1)
		return
	}
	st, proof, ok := stateOf(t[2])
	var out *messages.Call
	var err error
	if ok && (st == protocol.Done || len(m.Data) > 0) {
		out, err = messages.Unmarshal(m.Data)
	}
	if !ok || err != nil || out != nil && out.ID != t[0] {
		r.foreign(m, err)
		return
	}
	r.n.outcome(protocol.Work{Call: t[0], N: number(t[1])}, t[3], st, proof, letter{outcome: out})
}

// foreign counts a message that none of our processes can have written, and drops it.
func (r *replies) foreign(m *nats.Msg, err error) {
	r.ignored.Add(1)
	r.n.log.Warn("a reply came that cannot be read; it is ignored", "subject", m.Subject, "bytes", len(m.Data), "err", err)
}

// capacity hears that a member has room: <class>, and in the data <member> <free>.
func (r *replies) capacity(m *nats.Msg) {
	member, free := cutSpace(string(m.Data))
	if r.n.member.direct(member) {
		return // this process has told itself
	}
	t := strings.Split(m.Subject, ".")
	r.n.free(strings.Join(t[len(t)-2:], "."), member, int(number(free)))
}

// inHand is what a member has in hand, as it travels.
type inHand struct {
	Questions []uint64        `json:"questions,omitempty"`
	Works     []protocol.Work `json:"works,omitempty"`
}

// What members say, by whichever way it came.

func (n *Node) busy(w protocol.Work, seq uint64, member string) {
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Runs.Busy(now, w, seq, member, out)
	})
}

func (n *Node) has(w protocol.Work, member string, yes bool) {
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Runs.Has(now, w, member, yes, out)
	})
}

func (n *Node) shown(member string, l inHand) {
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Shown(now, member, l.Questions, l.Works, out)
	})
}

// away says that a process does not listen.
func (n *Node) away(process string) {
	for at, presence := range map[*machine]*protocol.Presence{n.owner: n.owns.Presence,
		n.member.machine: n.member.m.Presence} {
		at.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			presence.PassOver(now, process)
			if at == n.owner {
				n.onion.hops.changed()
			}
			return out
		})
	}
}

// free offers this owner's share of a member's room to calls that wait in line.
func (n *Node) free(class, member string, free int) {
	owners := n.presence.owners()
	share := (free + owners - 1) / owners
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Runs.Free(now, class, member, share, out)
	})
}

// chunk hands a piece of a streamed reply to who follows the call.
func (n *Node) chunk(w protocol.Work, member string, d pipeline.Delta) {
	shown := false
	if o := n.calls.get(w.Call); o != nil && o.waiter != nil {
		if shown = o.waiter.addDelta(d) && (o.seen.first.Load() != 0 || says(d.Chunk)); shown {
			o.seen.shown()
		}
	}
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Runs.Chunk(now, w, member, shown, out)
	})
}

// says reports whether a piece of a reply shows its reader something.
func says(piece []byte) bool {
	_, text := chat.ToolChunkText(piece)
	return text || events.Says(piece)
}

// outcome takes what came of work. What is no longer waited for is dropped.
func (n *Node) outcome(w protocol.Work, member string, st protocol.State, proof bool, l letter) {
	final := false
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		final, out = n.owns.Runs.Outcome(now, w, member, st, proof, out)
		return out
	})
	if o := n.calls.get(w.Call); final && o != nil {
		l.n, l.why, l.record.State, l.member = w.N, protocol.Ended, st, member
		if st == protocol.Lost {
			l.why = protocol.Unknown
		}
		o.mail.post(l)
	}
}

func cut(s string) (first, rest string) {
	first, rest, _ = strings.Cut(s, ".")
	return first, rest
}

func cutSpace(s string) (first, rest string) {
	first, rest, _ = strings.Cut(s, " ")
	return first, rest
}

// last is the last token.
func last(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }

// number reads a number that one of our processes wrote; such numbers are not 0, which stands for anything else.
func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}
