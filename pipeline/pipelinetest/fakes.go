package pipelinetest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

type assertT = assert.CollectT

// Target is a target for tests in one process: it gives one outcome after the other and remembers the requests. The
// last outcome repeats. The zero value replies {}. It is safe for concurrent use.
type Target struct {
	// Outcomes are replies (string or []byte) and errors, in the order of the runs.
	Outcomes []any

	mu       sync.Mutex
	requests [][]byte
}

var _ pipeline.Target = (*Target)(nil)

// Do gives the next outcome.
func (f *Target) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	f.mu.Lock()
	n := len(f.requests)
	f.requests = append(f.requests, c.Request())
	f.mu.Unlock()
	if len(f.Outcomes) == 0 {
		c.SetReply([]byte(`{}`))
		return nil
	}
	switch o := f.Outcomes[min(n, len(f.Outcomes)-1)].(type) {
	case error:
		return o
	case string:
		c.SetReply([]byte(o))
	case []byte:
		c.SetReply(o)
	default:
		return errors.New("pipelinetest.Target: an outcome is a string, bytes or an error")
	}
	return nil
}

// Calls returns how often the target ran.
func (f *Target) Calls() int { return len(f.Requests()) }

// Requests returns what the target was asked, in order.
func (f *Target) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]string, len(f.requests))
	for i, r := range f.requests {
		out[i] = string(r)
	}
	return out
}

// Records remembers what stages publish. It is safe for concurrent use. Publish fits stages.Deps.
type Records struct {
	// Err is what Publish returns.
	Err error

	mu  sync.Mutex
	all []Record
}

// Record is one published record, as JSON.
type Record struct {
	What string
	JSON string
}

// Publish remembers the record as the JSON that it would be on the wire.
func (r *Records) Publish(_ context.Context, what string, record any) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, Record{What: what, JSON: string(raw)})
	return r.Err
}

// All returns the records so far, in order.
func (r *Records) All() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Record(nil), r.all...)
}

// BrokenStore is a store that does not answer: every method returns Err. Tests use it to see whether a stage fails open
// or closed when its store is down.
type BrokenStore struct{ Err error }

var _ pipeline.Store = BrokenStore{}

func (b BrokenStore) err() error {
	if b.Err != nil {
		return b.Err
	}
	return errors.New("the store does not answer")
}

// Get returns Err.
func (b BrokenStore) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, b.err()
}

// Put returns Err.
func (b BrokenStore) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, b.err()
}

// Delete returns Err.
func (b BrokenStore) Delete(context.Context, string) error { return b.err() }

// Keys returns Err.
func (b BrokenStore) Keys(context.Context, string) ([]string, error) { return nil, b.err() }
