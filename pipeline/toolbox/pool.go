package toolbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/shallot-nats/shallot/messages"
)

// PoolConfig is `tool.executor` of the configuration, which checks it. CorePool has no effect: goroutines need no core
// threads.
type PoolConfig struct {
	CorePool      int `yaml:"core-pool" json:"core-pool"`
	MaxPool       int `yaml:"max-pool" json:"max-pool"`
	QueueCapacity int `yaml:"queue-capacity" json:"queue-capacity"`
}

// DefaultPool are the values of the specification.
func DefaultPool() PoolConfig { return PoolConfig{CorePool: 16, MaxPool: 64, QueueCapacity: 256} }

// Pool bounds how much tool work runs at once. It refuses nothing: a call that comes when all slots are taken waits,
// and its caller feels the back-pressure. It is safe for concurrent use.
type Pool struct {
	slots    chan struct{}
	admitted chan struct{} // slots and queue together; only what is in here counts as accepted
	work     sync.WaitGroup
}

// NewPool returns a pool; the configuration must be valid.
func NewPool(c PoolConfig) *Pool {
	return &Pool{slots: make(chan struct{}, c.MaxPool), admitted: make(chan struct{}, c.MaxPool+c.QueueCapacity)}
}

// Running is the number of slots in use.
func (p *Pool) Running() int { return len(p.slots) }

// Free is how many more calls the pool accepts before callers wait. A puller of work asks for that many.
func (p *Pool) Free() int { return cap(p.admitted) - len(p.admitted) }

// Wait waits for running work to end. Call it at shutdown, when the pool is given no more work.
func (p *Pool) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { p.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("tool pool: %d tools still run: %w", p.Running(), ctx.Err())
	}
}

// acquire waits for a slot and takes it. If it fails, with the context's error, nothing ran.
func (p *Pool) acquire(ctx context.Context) error {
	select {
	case p.admitted <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		<-p.admitted
		return ctx.Err()
	}
}

// run does the work in the slot that was acquired. It returns as soon as ctx ends, although the work may still be
// stopping; the slot is freed when the work has really ended, and a late answer is dropped. A panic is a tool_error.
func (p *Pool) run(ctx context.Context, tool string, work func(ctx context.Context) (Result, error)) (Result, error) {
	type outcome struct {
		r   Result
		err error
	}
	out := make(chan outcome, 1) // buffered, so that a late answer needs no reader
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		defer func() { <-p.slots; <-p.admitted }()
		o := outcome{err: errNoEnd}
		defer func() {
			if v := recover(); v != nil {
				o.r, o.err = Result{}, &panicError{text: fmt.Sprint(v), stack: string(debug.Stack())}
			}
			out <- o
		}()
		o.r, o.err = work(ctx)
	}()
	select {
	case o := <-out:
		return o.r, o.err
	case <-ctx.Done():
		select {
		case o := <-out: // both at once: the work is done
			return o.r, o.err
		default:
		}
		return Result{}, ctx.Err()
	}
}

// errNoEnd is the error of work that ended its goroutine instead of returning (runtime.Goexit), which is not a success.
var errNoEnd = errors.New("it ended without an answer")

type panicError struct{ text, stack string }

func (e *panicError) Error() string { return "it panicked: " + e.text }

// busy is the fault of a call whose time was over before it got a slot: the tool did not run.
func busy(tool string) *messages.Fault {
	f := messages.NewFault(messages.DeadlineExceeded, "the call's time was over while it waited for a free slot "+
		"to run '%s'; it did not run", tool).From("tool pool")
	f.Unsent = true
	return f
}
