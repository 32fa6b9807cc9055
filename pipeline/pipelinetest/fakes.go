package pipelinetest

import (
	"context"
	"errors"
	"sync"

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
