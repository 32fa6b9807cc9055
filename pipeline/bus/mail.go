package bus

import (
	"context"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// letter is what the goroutine of a call is told.
type letter struct {
	why    protocol.Why // 0: an answer or an outcome
	n      uint64       // of the question or of the work
	answer *messages.Answer
	// outcome is what came of work, as a message told it; local is the same where it came without one.
	outcome *messages.Call
	local   *result
	record  protocol.Record
	member  string // who did the work
	// ahead and expected are of a refusal: how many are before the call in line, and how long it would wait.
	ahead    int
	expected time.Duration
}

// mailbox holds the letters of one call until its goroutine reads them. The zero value is not ready: news is to be
// made with one slot.
type mailbox struct {
	mu      sync.Mutex
	letters []letter
	news    chan struct{}
}

func (b *mailbox) post(l letter) {
	b.mu.Lock()
	b.letters = append(b.letters, l)
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func (b *mailbox) take() (l letter, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) == 0 {
		return l, false
	}
	l = b.letters[0]
	b.letters[0] = letter{}
	if b.letters = b.letters[1:]; len(b.letters) == 0 {
		b.letters = nil
	}
	return l, true
}

// next waits for a letter. The error is ctx's.
func (b *mailbox) next(ctx context.Context) (letter, error) {
	for {
		if l, ok := b.take(); ok {
			return l, nil
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			if l, ok := b.take(); ok {
				return l, nil // it says more than the end of the context, which often comes with it
			}
			return letter{}, ctx.Err()
		}
	}
}
