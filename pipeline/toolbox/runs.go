package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// RunRecords are the records that keep a tool which is not idempotent from running twice: one is written before the tool
// starts, and it takes the result when it has ended. Whoever finds one without a result does not run the tool.
type RunRecords struct {
	Store pipeline.Store
	// Keep is how long a record stays; 24 h if 0.
	Keep time.Duration
}

type runRecord struct {
	State       string          `json:"state"` // started | done
	Tool        string          `json:"tool"`
	Fingerprint string          `json:"fingerprint"`
	Started     time.Time       `json:"started"`
	Run         string          `json:"run,omitempty"` // who wrote it
	Result      *storedResult   `json:"result,omitempty"`
	Fault       *messages.Fault `json:"fault,omitempty"`
}

// storedResult is a Result as it is kept. Content is base64 in JSON, so that text and JSON come back as they were.
type storedResult struct {
	Content    []byte          `json:"content"`
	Structured json.RawMessage `json:"structured,omitempty"`
	IsError    bool            `json:"is_error,omitempty"`
	Metadata   map[string]any  `json:"metadata,omitempty"`
	Streamed   bool            `json:"streamed,omitempty"` // it was given in chunks
}

func (i *RunRecords) ttl() time.Duration {
	if i.Keep > 0 {
		return i.Keep
	}
	return 24 * time.Hour
}

// begin writes the record. If there is one already, of another run, that is returned. A write that was not answered may
// have happened: then the record that is there is this run's own.
func (i *RunRecords) begin(ctx context.Context, key string, n runRecord) (rev uint64, old *runRecord, err error) {
	n.Run = messages.NewID()
	rev, failed := i.Store.Put(ctx, key, rawjson.Encode(n), i.ttl(), pipeline.IfAbsent())
	if failed == nil {
		return rev, nil, nil
	}
	e, err := i.Store.Get(ctx, key)
	if err != nil {
		if errors.Is(failed, pipeline.ErrExists) {
			failed = err
		}
		return 0, nil, failed
	}
	old = &runRecord{}
	if err := json.Unmarshal(e.Value, old); err != nil {
		return 0, nil, err
	}
	if old.Run == n.Run {
		return e.Revision, nil, nil
	}
	return e.Revision, old, nil
}

// end stores what came of it. A record that somebody else changed meanwhile stays as it is.
func (i *RunRecords) end(ctx context.Context, key string, rev uint64, n runRecord) error {
	n.State = "done"
	_, err := i.Store.Put(ctx, key, rawjson.Encode(n), i.ttl(), pipeline.IfRevision(rev))
	return err
}

// forget takes the record away again: the tool provably did not run, so the next attempt may.
func (i *RunRecords) forget(ctx context.Context, key string) error { return i.Store.Delete(ctx, key) }
