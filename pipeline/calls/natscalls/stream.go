// Package natscalls keeps the stories of calls in a stream, asks the processes for those that run, and follows events
// as they come.
package natscalls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
)

// Stream is where stories are kept.
const Stream = "SHALLOT_EVENTS"

// Limits bound what is kept: whichever is reached first.
type Limits struct {
	Age      time.Duration
	Bytes    int64
	Replicas int
	// Verify checks that the stream is there and changes nothing.
	Verify bool
}

// Provision makes the stream, or gives it these limits. It returns those that hold. Any number of processes may do it
// at once.
func Provision(ctx context.Context, js jetstream.JetStream, root string, l Limits) (Limits, error) {
	want := jetstream.StreamConfig{
		Name:        Stream,
		Description: "stories of calls that have ended; look one up with: gateway calls",
		Subjects: messages.Subjects{
			Root: root,
		}.StorySpace(),
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      l.Age,
		MaxBytes:    l.Bytes,
		Replicas:    max(l.Replicas, 1),
		AllowDirect: true,
		NoAck:       true,
	}
	var s jetstream.Stream
	var err error
	if l.Verify {
		s, err = js.Stream(ctx, Stream)
	} else {
		s, err = js.CreateOrUpdateStream(ctx, want)
	}
	if err != nil {
		return Limits{}, fmt.Errorf("stream %s: %w", Stream, err)
	}
	have := s.CachedInfo().Config
	if !have.AllowDirect {
		return Limits{}, fmt.Errorf("stream %s: direct gets are off; set allow_direct", Stream)
	}
	return Limits{Age: have.MaxAge, Bytes: have.MaxBytes, Replicas: have.Replicas}, nil
}

// stored is a story as the stream has it.
type stored struct {
	seq  uint64
	at   time.Time
	data []byte
}

// get is a request for messages of the stream by their place, without a consumer.
type get struct {
	Seq   uint64     `json:"seq,omitempty"`
	Start *time.Time `json:"start_time,omitempty"`
	Next  string     `json:"next_by_subj,omitempty"`
	Last  string     `json:"last_by_subj,omitempty"`
	Batch int        `json:"batch,omitempty"`

	upTo uint64 // the last that is wanted; 0: any
}

// errNoAnswer says that the stream cannot be asked.
var errNoAnswer = errors.New("the stream of stories does not answer")

// silence is how long the server may take for each message.
const silence = 2 * time.Second

// read returns the messages that a request asks for, in their order. None is no error.
func read(ctx context.Context, nc *nats.Conn, g get) ([]stored, error) {
	ask, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+Stream, sub.Subject, ask); err != nil {
		return nil, err
	}
	var out []stored
	for {
		limit, cancel := context.WithTimeout(ctx, silence)
		m, err := sub.NextMsgWithContext(limit)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		switch status := m.Header.Get("Status"); {
		case status == "204", status == "404":
			return out, nil
		case status != "":
			return nil, fmt.Errorf("%w: %s %s", errNoAnswer, status, m.Header.Get("Description"))
		}
		one := stored{data: m.Data}
		one.seq, _ = strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
		one.at, _ = time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
		if g.upTo > 0 && one.seq > g.upTo {
			return out, nil
		}
		out = append(out, one)
		if g.Batch == 0 {
			return out, nil
		}
	}
}
