// Package quota counts what stages give out: ledgers of what was used and reserved, and a bound on the entries of a
// store. It knows no stage.
package quota

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Amount is what a ledger counts.
type Amount struct {
	Calls  int64 `json:"calls,omitempty"`
	Tokens int64 `json:"tokens,omitempty"`
	// Micros are millionths of a US dollar; integers, so that sums are exact.
	Micros int64 `json:"microUsd,omitempty"`
}

func (a Amount) plus(b Amount) Amount {
	return Amount{a.Calls + b.Calls, a.Tokens + b.Tokens, a.Micros + b.Micros}
}

// reservation is what one call has reserved, or has booked, until a time after which no phase of it can run any more.
type reservation struct {
	Amount
	Until time.Time `json:"until"`
}

// Ledger is one record of a store and the time for which it is kept since its last change. Every change is one
// compare-and-set, and is made once for each call id however often a call is retried further in or delivered again.
type Ledger struct {
	Store pipeline.Store
	Key   string
	TTL   time.Duration
}

// balance is what the record holds: what was used, what calls under way have reserved, and which calls were settled
// lately.
type balance struct {
	Used    Amount                 `json:"used"`
	Open    map[string]reservation `json:"open,omitempty"`
	Settled map[string]reservation `json:"settled,omitempty"`
}

const (
	// ledgerGrace is kept on top of a call's deadline, for clocks that differ.
	ledgerGrace = time.Minute
	// ledgerSettled bounds the settled calls that a record remembers; the ones whose time ends first are forgotten.
	ledgerSettled = 512
)

func reservedUntil(c *messages.Call) time.Time {
	if c.Deadline.IsZero() {
		return time.Now().Add(24 * time.Hour)
	}
	return c.Deadline.Add(ledgerGrace)
}

func (b *balance) prune(now time.Time) {
	for id, o := range b.Open {
		if now.After(o.Until) {
			delete(b.Open, id)
		}
	}
	for id, s := range b.Settled {
		if now.After(s.Until) {
			delete(b.Settled, id)
		}
	}
	for len(b.Settled) > ledgerSettled {
		first := ""
		for id, s := range b.Settled {
			if first == "" || s.Until.Before(b.Settled[first].Until) {
				first = id
			}
		}
		delete(b.Settled, first)
	}
}

// taken is what was used and what calls under way have reserved.
func (b *balance) taken() Amount {
	sum := b.Used
	for _, o := range b.Open {
		sum = sum.plus(o.Amount)
	}
	return sum
}

// knows reports whether the call holds or held a reservation here.
func (b *balance) knows(id string) bool {
	_, open := b.Open[id]
	_, settled := b.Settled[id]
	return open || settled
}

// Reserve reserves an amount for the call unless what is taken so far exceeds the limit. It returns what was taken
// before, and whether the call may go on. With within, a call made for another one that has a reservation here is a
// part of that one and reserves nothing itself.
func (l Ledger) Reserve(
	ctx context.Context, c *messages.Call, a Amount, within bool, exceeded func(taken Amount) bool,
) (before Amount, ok bool, err error) {
	_, err = pipeline.Change(ctx, l.Store, l.Key, l.TTL, func(b *balance) (bool, error) {
		b.prune(time.Now())
		before, ok = b.taken(), true
		if _, part := b.Open[c.Parent]; b.knows(c.ID) || within && part {
			return false, nil
		}
		if exceeded(before) {
			ok = false
			return false, nil
		}
		if b.Open == nil {
			b.Open = map[string]reservation{}
		}
		b.Open[c.ID] = reservation{a, reservedUntil(c)}
		return true, nil
	})
	return before, ok, err
}

// Book turns the call's reservation into use of an amount. A call without one is settled already, or is part of
// another; nothing changes then.
func (l Ledger) Book(ctx context.Context, c *messages.Call, a Amount) error {
	return l.end(ctx, c, func(b *balance) {
		b.Used = b.Used.plus(a)
		if b.Settled == nil {
			b.Settled = map[string]reservation{}
		}
		b.Settled[c.ID] = reservation{Until: reservedUntil(c)}
	})
}

// Release drops the call's reservation: nothing was used.
func (l Ledger) Release(ctx context.Context, c *messages.Call) error {
	return l.end(ctx, c, func(*balance) {})
}

// end closes the call's reservation, if it has one.
func (l Ledger) end(ctx context.Context, c *messages.Call, book func(*balance)) error {
	_, err := pipeline.Change(ctx, l.Store, l.Key, l.TTL, func(b *balance) (bool, error) {
		if _, open := b.Open[c.ID]; !open {
			return false, nil
		}
		delete(b.Open, c.ID)
		book(b)
		b.prune(time.Now())
		return true, nil
	})
	return err
}

// AfterCall outlives the call: what was used must be booked although the caller has left or the time is over.
func AfterCall(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// StoreFault is how a stage that fails closed says that its counters do not answer.
func StoreFault(stage, what string, err error) error {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return f
	}
	return messages.NewFault(messages.StoreUnavailable, "stage %s: the %s cannot be read or written (%v); "+
		"the call is refused rather than uncounted; try again when the store answers", stage, what, err).From(stage)
}
