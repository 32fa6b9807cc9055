package bus

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// codec writes calls and reads them. Bodies above the limit become claim checks in the object store; stages and targets
// never see it.
type codec struct {
	objects jetstream.ObjectStore
	limit   int
	payload int // the server's max_payload
	cache   bodyCache
	// fetching is what may still be on its way from the object store, in bytes.
	fetching *semaphore.Weighted
}

func newCodec(objects jetstream.ObjectStore, limit, payload int) *codec {
	return &codec{objects: objects, limit: limit, payload: payload, fetching: semaphore.NewWeighted(fetchBytes)}
}

// encode writes a call.
func (e *codec) encode(ctx context.Context, c *messages.Call) ([]byte, error) {
	return e.spill(ctx, c, c.Marshal)
}

// spill writes with write, with bodies above the limit in the object store. Several bodies below it may be too much
// together; then the limit is lower for them.
func (e *codec) spill(ctx context.Context, c *messages.Call, write func() ([]byte, error)) ([]byte, error) {
	return e.within(write, func(limit int) error {
		return c.Spill(limit, func(raw []byte) (string, error) { return e.store(ctx, c.Tenant, raw) })
	})
}

func (e *codec) within(write func() ([]byte, error), spill func(limit int) error) ([]byte, error) {
	for limit := e.limit; ; limit /= 2 {
		if err := spill(limit); err != nil {
			return nil, messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: %v", err)
		}
		data, err := write()
		if err != nil {
			return nil, err
		}
		if len(data) <= e.payload*3/4 || limit < 1024 { // the rest of max_payload is for headers
			return data, nil
		}
	}
}

// answer writes an answer to a question of the tenant.
func (e *codec) answer(ctx context.Context, tenant string, a *messages.Answer) ([]byte, error) {
	return e.within(a.Marshal, func(limit int) error {
		return a.Spill(limit, func(raw []byte) (string, error) { return e.store(ctx, tenant, raw) })
	})
}

// fill fetches the bodies behind the call's claim checks.
func (e *codec) fill(ctx context.Context, c *messages.Call) error {
	for _, ref := range c.Refs() {
		raw, err := e.body(ctx, c.Tenant, ref)
		if err != nil {
			return err
		}
		c.Fill(ref, raw)
	}
	return nil
}

// body fetches one body.
func (e *codec) body(ctx context.Context, tenant, ref string) ([]byte, error) {
	if raw, ok := e.cache.get(ref); ok {
		return raw, nil
	}
	raw, err := e.checked(ctx, tenant, ref)
	if err == nil {
		e.cache.put(ref, raw)
	}
	return raw, err
}

// checked fetches one body and keeps nothing of it.
func (e *codec) checked(ctx context.Context, tenant, ref string) ([]byte, error) {
	raw, err := e.fetch(ctx, ref)
	if err != nil {
		return nil, messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: get %s: %v", ref, err)
	}
	if !strings.HasSuffix(ref, digest(tenant, raw)) {
		return nil, messages.NewFault(messages.Internal, "the object store returned other bytes than were stored under %s",
			ref)
	}
	return raw, nil
}

// result is what came of a target's work: the notes and the reply or fault of a call. It is the target of the owner's
// call in the place of the target.
type result struct{ call *messages.Call }

var _ pipeline.Target = (*result)(nil)

// Do implements pipeline.Target.
func (r *result) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	c.Notes = maps.Clone(r.call.Notes)
	if r.call.Fault != nil {
		return r.call.Fault
	}
	c.ReplyFrom(r.call)
	return nil
}

// encodeResult writes what came of a target's work on the call. Large bodies become objects of this work alone, which
// refs names: whoever runs the work deletes them when the call has ended.
func (e *codec) encodeResult(ctx context.Context, c *messages.Call, w protocol.Work) (data []byte, refs []string,
	err error) {
	out := &messages.Call{Wire: c.Wire, ID: c.ID, Kind: c.Kind, Tenant: c.Tenant, Accepted: c.Accepted,
		Deadline: c.Deadline, Notes: c.Notes}
	out.ReplyFrom(c)
	out.Fault = c.Fault
	of := messages.Token(c.Tenant) + "/" + messages.Token(w.Call) + "." + strconv.FormatUint(w.N, 10) + "/"
	data, err = e.within(out.Marshal, func(limit int) error {
		return out.Spill(limit, func(raw []byte) (string, error) {
			ref := of + digest(c.Tenant, raw)
			refs = append(refs, ref)
			return ref, e.place(ctx, ref, raw)
		})
	})
	return data, refs, err
}

func (e *codec) decodeResult(ctx context.Context, data []byte) (*result, error) {
	c, err := messages.Unmarshal(data)
	if err != nil {
		return nil, messages.NewFault(messages.Internal, "the outcome of the target cannot be read: %v", err)
	}
	return e.result(ctx, c)
}

// result fetches the large bodies of what came of a target's work. Nobody asks for them again, so they are not cached.
func (e *codec) result(ctx context.Context, c *messages.Call) (*result, error) {
	for _, ref := range c.Refs() {
		raw, err := e.checked(ctx, c.Tenant, ref)
		if err != nil {
			return &result{c}, err
		}
		c.Fill(ref, raw)
	}
	c.Uncheck()
	return &result{c}, nil
}

// The terms of an offer are its first line: n, seq, once, bound, sent, until, first, as numbers between blanks.

func appendTerms(b []byte, e *protocol.Effect, f offer) []byte {
	flag := func(yes bool) int64 {
		if yes {
			return 1
		}
		return 0
	}
	for _, v := range []int64{int64(e.N), int64(e.Seq), flag(e.Once), flag(f.bound), int64(e.At), int64(e.Until),
		int64(f.first)} {
		b = append(strconv.AppendInt(b, v, 10), ' ')
	}
	return append(b[:len(b)-1], '\n')
}

var errTerms = errors.New("the first line of the offer cannot be read")

// readTerms reads an offer; the call follows the first line.
func readTerms(data []byte) (f protocol.Offered, wire []byte, err error) {
	line, wire, ok := bytes.Cut(data, []byte{'\n'})
	var v [7]int64
	t := bytes.Split(line, []byte{' '})
	if !ok || len(t) != len(v) {
		return f, nil, errTerms
	}
	for i := range v {
		if v[i], err = strconv.ParseInt(string(t[i]), 10, 64); err != nil {
			return f, nil, errTerms
		}
	}
	f.N, f.Seq, f.Once, f.Bound, f.First = uint64(v[0]), uint64(v[1]), v[2] != 0, v[3] != 0, uint64(v[6])
	f.Sent, f.Until = time.Duration(v[4]), time.Duration(v[5])
	return f, wire, nil
}

// A memo is what an owner says of work that it does not offer: owner, call, n, seq and at, between blanks.

func workMemo(owner string, e *protocol.Effect) []byte {
	b := append(append(append([]byte(owner), ' '), e.Call...), ' ')
	b = append(strconv.AppendUint(b, e.N, 10), ' ')
	b = append(strconv.AppendUint(b, e.Seq, 10), ' ')
	return strconv.AppendInt(b, int64(e.At), 10)
}

type memo struct {
	owner string
	work  protocol.Work
	seq   uint64
}

func readMemo(data []byte) (m memo, ok bool) {
	t := strings.Split(string(data), " ")
	if len(t) != 5 {
		return m, false
	}
	return memo{owner: t[0], work: protocol.Work{Call: t[1], N: number(t[2])}, seq: number(t[3])}, true
}

// stateWords are the states of an outcome in the subject that brings it; proved is a NotRun that the target said.
var stateWords = map[protocol.State]string{protocol.Done: "done", protocol.NotRun: "notrun", protocol.Void: "notrun",
	protocol.Lost: "lost"}

const provedWord = "proved"

func stateWord(st protocol.State, proof bool) string {
	if st == protocol.NotRun && proof {
		return provedWord
	}
	return stateWords[st]
}

func stateOf(word string) (st protocol.State, proof, ok bool) {
	switch word {
	case provedWord:
		return protocol.NotRun, true, true
	case stateWords[protocol.NotRun]:
		return protocol.NotRun, false, true
	case stateWords[protocol.Lost]:
		return protocol.Lost, false, true
	}
	return protocol.Done, false, word == stateWords[protocol.Done]
}
