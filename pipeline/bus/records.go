package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// records reads and writes single messages of streams and buckets as the protocol wants them: without waiting, with an
// answer that tells "not stored" from "nobody knows". Reads go to the leader of the stream, because decisions hang on
// what is not there. It is safe for concurrent use.
type records struct{ ask *requests }

// found is what a read came to, or the PubAck of a write.
type found struct {
	result  protocol.Result
	rev     uint64
	data    []byte
	header  nats.Header
	created time.Time
	// empty says that nothing is there but the mark of a deletion, at rev.
	empty bool
	// why is the text of a refusal.
	why string
}

const (
	hdrExpect   = "Nats-Expected-Last-Subject-Sequence"
	hdrTTL      = "Nats-TTL"
	hdrKVOp     = "KV-Operation"
	hdrRollup   = "Nats-Rollup"
	markerTTL   = "60s"
	noMessage   = jetstream.ErrorCode(10037)
	wrongLast   = jetstream.JSErrCodeStreamWrongLastSequence
	wrongLastR3 = jetstream.ErrorCode(10164) // the same on replicated streams
)

func kvSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// publish stores a message; then hears OK, Exists (another revision was expected), No with a reason, or Unclear.
func (r records) publish(m *nats.Msg, then func(f found)) {
	err := r.ask.send(m, func(ack *nats.Msg) { then(readAck(ack)) })
	if err != nil {
		then(notSent(err))
	}
}

// repeats is how often something is tried again that no protocol looks after: for half a minute.
const repeats = 15

// insist stores a message, and again until the server says that it has it: it needs a message id.
func (r records) insist(m *nats.Msg, then func(f found)) { r.try(m, repeats, then) }

func (r records) try(m *nats.Msg, tries int, then func(f found)) {
	r.publish(m, func(f found) {
		if f.result == protocol.OK || tries == 0 {
			then(f)
			return
		}
		time.AfterFunc(unanswered, func() { r.try(m, tries-1, then) })
	})
}

func notSent(err error) found {
	if errors.Is(err, errNotSent) || errors.Is(err, nats.ErrMaxPayload) {
		return found{result: protocol.No, why: err.Error()}
	}
	return found{result: protocol.Unclear, why: err.Error()}
}

// create stores a value under a key that has none. then hears Exists, with the value, if there is one; a deletion's
// mark does not count as a value.
func (r records) create(bucket, key string, value []byte, then func(f found)) {
	r.createAt(bucket, key, value, 0, then)
}

func (r records) createAt(bucket, key string, value []byte, rev uint64, then func(f found)) {
	r.update(bucket, key, value, rev, func(f found) {
		if f.result != protocol.Exists {
			then(f)
			return
		}
		r.get(bucket, key, func(f found) {
			switch {
			case f.result == protocol.OK:
				f.result = protocol.Exists
			case f.result == protocol.Missing && f.rev != rev:
				r.createAt(bucket, key, value, f.rev, then)
				return
			default:
				f.result = protocol.Unclear // it came and went
			}
			then(f)
		})
	})
}

// update writes over a revision; 0 is what was never there. then hears Exists if another one is there.
func (r records) update(bucket, key string, value []byte, rev uint64, then func(f found)) {
	m := &nats.Msg{Subject: kvSubject(bucket, key), Data: value,
		Header: nats.Header{hdrExpect: {strconv.FormatUint(rev, 10)}}}
	r.publish(m, then)
}

// remove deletes the revision of a key, and leaves a mark that goes away by itself.
func (r records) remove(bucket, key string, rev uint64, then func(f found)) {
	m := &nats.Msg{Subject: kvSubject(bucket, key), Header: nats.Header{
		hdrExpect: {strconv.FormatUint(rev, 10)}, hdrKVOp: {"PURGE"}, hdrRollup: {"sub"}, hdrTTL: {markerTTL}}}
	r.publish(m, then)
}

// get reads a key. then hears OK, Missing or Unclear.
func (r records) get(bucket, key string, then func(f found)) {
	r.last("KV_"+bucket, kvSubject(bucket, key), then)
}

// last reads the last message of a subject, which may be a pattern.
func (r records) last(stream, subject string, then func(f found)) {
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err == nil {
		m := &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: body}
		err = r.ask.send(m, func(m *nats.Msg) { then(readGet(m)) })
	}
	if err != nil {
		then(found{result: protocol.Unclear, why: err.Error()})
	}
}

// readAck reads a PubAck. No answer at all proves nothing; that nobody took the message does.
func readAck(m *nats.Msg) found {
	if m == nil {
		return found{result: protocol.Unclear, why: "the NATS server did not answer"}
	}
	if m.Header.Get("Status") == strconv.Itoa(http.StatusServiceUnavailable) {
		return found{result: protocol.No, why: "no stream takes it; JetStream or the stream's leader is away"}
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil || ack.Error == nil && ack.Seq == 0:
		return found{result: protocol.Unclear, why: "the answer of the NATS server cannot be read"}
	case ack.Error == nil:
		return found{result: protocol.OK, rev: ack.Seq}
	case ack.Error.ErrorCode == wrongLast, ack.Error.ErrorCode == wrongLastR3:
		return found{result: protocol.Exists}
	default:
		return found{result: protocol.No, why: fmt.Sprintf("%s (%d)", ack.Error.Description, ack.Error.ErrorCode)}
	}
}

func readGet(m *nats.Msg) found {
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq    uint64    `json:"seq"`
			Header []byte    `json:"hdrs"`
			Data   []byte    `json:"data"`
			Time   time.Time `json:"time"`
		} `json:"message"`
	}
	switch {
	case m == nil:
		return found{result: protocol.Unclear, why: "the NATS server did not answer"}
	case json.Unmarshal(m.Data, &got) != nil || got.Error == nil && got.Message == nil:
		return found{result: protocol.Unclear, why: "the answer of the NATS server cannot be read"}
	case got.Error != nil && got.Error.ErrorCode == noMessage:
		return found{result: protocol.Missing}
	case got.Error != nil:
		return found{result: protocol.Unclear, why: got.Error.Description}
	}
	f := found{result: protocol.OK, rev: got.Message.Seq, data: got.Message.Data, created: got.Message.Time}
	if len(got.Message.Header) > 0 {
		var err error
		if f.header, err = nats.DecodeHeadersMsg(got.Message.Header); err != nil {
			return found{result: protocol.Unclear, why: err.Error()}
		}
	}
	if f.header.Get(hdrKVOp) != "" || f.header.Get("Nats-Marker-Reason") != "" {
		f.result, f.data, f.empty = protocol.Missing, nil, true
	}
	return f
}
