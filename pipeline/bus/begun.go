package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// begun keeps the records of work that must not run twice, and outcomes that their member could not keep.
type begun struct {
	js       jetstream.JetStream
	records  jetstream.KeyValue
	outcomes jetstream.KeyValue
	clock    clock
}

// begunLine is line 1 of a record; the outcome follows, if there is one.
type begunLine struct {
	State string `json:"state"`
	By    string `json:"by,omitempty"` // the member, or the owner that gave the work up
	Nonce uint64 `json:"nonce,omitempty"`
	Last  bool   `json:"last,omitempty"`
	// Until is the end of the call's time, in seconds since the Unix epoch: nothing begins after it.
	Until int64 `json:"until,omitempty"`
}

var recordWords = map[protocol.State]string{protocol.Void: "void", protocol.Begun: "begun", protocol.NotRun: "not-run",
	protocol.Done: "done", protocol.Lost: "lost"}

// storeTime bounds one request to the server. One that was not answered may have been done.
const storeTime = 3 * time.Second

// claimTime bounds the creation of a record by the member that is to do the work. If its answer is lost there must be
// time left to read what became of it: work begins within a second, or not at all.
const claimTime = 400 * time.Millisecond

func newBegun(ctx context.Context, js jetstream.JetStream, c clock) (*begun, error) {
	b := &begun{js: js, clock: c}
	var err error
	if b.records, err = js.KeyValue(ctx, jet.BegunBucket); err == nil {
		b.outcomes, err = js.KeyValue(ctx, jet.OutcomesBucket)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: records of work: %w; run the provisioning step first", err)
	}
	return b, nil
}

// do carries out an effect on a record of the tenant's call and says what came of it; found is the outcome that a read
// found. payload is the outcome that goes into the record.
func (b *begun) do(ctx context.Context, tenant string, e protocol.Effect, payload []byte) (
	st protocol.Stored, found []byte) {
	limit := storeTime
	if e.Kind == protocol.PutBegun && e.State == protocol.Begun {
		limit = claimTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	key := messages.Key(tenant, e.Call, strconv.FormatUint(e.N, 10))
	value := b.line(e)
	if payload != nil {
		value = append(append(value, '\n'), payload...)
	}
	var rev uint64
	var err error
	switch e.Kind {
	case protocol.PutBegun:
		rev, err = b.records.Create(ctx, key, value)
	case protocol.SetBegun:
		rev, err = b.records.Update(ctx, key, value, e.Rev)
	case protocol.GetBegun:
		return read(b.records.Get(ctx, key))
	case protocol.PutOutcome:
		rev, err = b.outcomes.Put(ctx, key, value)
	case protocol.GetOutcome:
		return read(b.outcomes.Get(ctx, key))
	}
	st = protocol.Stored{Result: written(err)}
	if err == nil {
		st.Record = protocol.Record{State: e.State, By: e.By, Nonce: e.Nonce, Last: e.Last, Rev: rev}
	}
	return st, nil
}

// mayHaveRun reports whether work of the tenant's call has begun, whatever came of it.
func (b *begun) mayHaveRun(ctx context.Context, tenant, call string) (bool, error) {
	for n := uint64(1); ; n++ {
		st, _ := b.do(ctx, tenant, protocol.Effect{Kind: protocol.GetBegun, Call: call, N: n}, nil)
		switch {
		case st.Result == protocol.Missing:
			return false, nil
		case st.Result != protocol.OK:
			return false, errors.New("the records of begun work cannot be read")
		case st.Record.State != protocol.Void && st.Record.State != protocol.NotRun:
			return true, nil
		}
	}
}

func (b *begun) line(e protocol.Effect) []byte {
	l := begunLine{State: recordWords[e.State], By: e.By, Nonce: e.Nonce, Last: e.Last}
	if e.Until > 0 {
		l.Until = b.clock.wall(e.Until).Unix()
	}
	return rawjson.Encode(l)
}

// written says what came of a write.
func written(err error) protocol.Result {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return protocol.OK
	case errors.Is(err, jetstream.ErrKeyExists):
		return protocol.Exists
	case errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		return protocol.Exists
	case errors.As(err, &api) && api.ErrorCode == wrongLastReplicated:
		return protocol.Exists
	case errors.As(err, &api):
		return protocol.No
	}
	return protocol.Unclear
}

// wrongLastReplicated is what a replicated stream says of another revision.
const wrongLastReplicated = 10164

func read(entry jetstream.KeyValueEntry, err error) (st protocol.Stored, found []byte) {
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return protocol.Stored{Result: protocol.Missing}, nil
	}
	if err != nil {
		return protocol.Stored{Result: protocol.Unclear}, nil
	}
	line, payload, _ := bytes.Cut(entry.Value(), []byte{'\n'})
	var l begunLine
	if json.Unmarshal(line, &l) != nil {
		return protocol.Stored{Result: protocol.Unclear}, nil
	}
	r := protocol.Record{By: l.By, Nonce: l.Nonce, Last: l.Last, Rev: entry.Revision()}
	for state, word := range recordWords {
		if word == l.State {
			r.State = state
		}
	}
	return protocol.Stored{Result: protocol.OK, Record: r}, payload
}
