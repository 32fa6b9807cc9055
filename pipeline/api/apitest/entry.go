package apitest

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Entry is an in-process Entry over pipeline.Local with a scripted target.
type Entry struct {
	Stages []pipeline.Stage
	Target pipeline.TargetFunc
	Refuse func(pipeline.Request) error // refuses requests, if set
	Left   chan string
	Bound  bool // calls end when their process stops

	mu      sync.Mutex
	Seen    []pipeline.Request
	tenants map[string]string
	ended   map[string]*messages.Call
}

// Accept implements pipeline.Entry.
func (d *Entry) Accept(_ context.Context, r pipeline.Request) (pipeline.Pending, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Seen = append(d.Seen, r)
	if d.Refuse != nil {
		if err := d.Refuse(r); err != nil {
			return nil, err
		}
	}
	c := messages.NewCall(r.Kind, r.Tenant, r.Body)
	c.Wire, c.Stream, c.Session, c.Deadline, c.Notes = r.Wire, r.Stream, r.Session, r.Deadline, maps.Clone(r.Notes)
	if d.tenants == nil {
		d.tenants, d.ended = map[string]string{}, map[string]*messages.Call{}
	}
	d.tenants[c.ID] = r.Tenant
	return &localPending{d: d, c: c}, nil
}

// Result implements pipeline.Entry; it waits for the end of a call that is under way.
func (d *Entry) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	d.mu.Lock()
	owner, c := d.tenants[id], d.ended[id]
	d.mu.Unlock()
	if owner == "" || owner != tenant {
		return nil, messages.NewFault(messages.NotFound, "no call %q", id).From("entry")
	}
	if c == nil {
		<-ctx.Done()
	}
	return c, nil
}

// End records the end of a call for Result.
func (d *Entry) End(c *messages.Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended[c.ID] = c
}

// Last is the latest request that was accepted.
func (d *Entry) Last(t *testing.T) pipeline.Request {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NotEmpty(t, d.Seen, "the entry saw no request")
	return d.Seen[len(d.Seen)-1]
}

type localPending struct {
	d *Entry
	c *messages.Call
}

func (p *localPending) ID() string { return p.c.ID }

func (p *localPending) Leave() {
	if p.d.Left != nil {
		select {
		case p.d.Left <- p.c.ID:
		default:
		}
	}
}

// Stop implements pipeline.Pending.
func (p *localPending) Stop() *messages.Call {
	if !p.d.Bound {
		return nil
	}
	c := p.c.Clone()
	c.Fail(messages.NewFault(messages.Stopping, "the process stops; send it again").From("entry"))
	return c
}

func (p *localPending) Wait(ctx context.Context, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	n := 0
	l := pipeline.Chain(p.d.Stages, p.d.Target)
	l.Emit = func(chunk []byte) error {
		n++
		if onDelta != nil {
			onDelta(pipeline.Delta{Source: "1", N: n, Chunk: chunk})
		}
		return ctx.Err()
	}
	c, err := l.Call(ctx, p.c)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return c, err
}

// PlainFollower releases every chunk, and shows the whole reply if there was none.
type PlainFollower struct{ shown bool }

// Delta releases the chunk.
func (f *PlainFollower) Delta(d pipeline.Delta) [][]byte {
	f.shown = true
	return [][]byte{d.Chunk}
}

// End decides what is shown last.
func (f *PlainFollower) End(c *messages.Call) ([][]byte, *messages.Fault) {
	if c.Fault != nil || f.shown {
		return nil, c.Fault
	}
	return [][]byte{c.Reply()}, nil
}

// Replies is a target that answers with the bytes.
func Replies(reply string) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(reply))
		return nil
	}
}

// Faults is a target that fails.
func Faults(f *messages.Fault) pipeline.TargetFunc {
	return func(context.Context, *messages.Call, pipeline.Emit) error { return f }
}
