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

// ledger is one record of bucket limits: what was used, what calls under way have reserved, and which calls were
// settled lately. Every change is one compare-and-set, and is made once for each call id however often a call is
// retried further in or delivered again.
type ledger struct {
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

func (l *ledger) prune(now time.Time) {
	for id, o := range l.Open {
		if now.After(o.Until) {
			delete(l.Open, id)
		}
	}
	for id, s := range l.Settled {
		if now.After(s.Until) {
			delete(l.Settled, id)
		}
	}
	for len(l.Settled) > ledgerSettled {
		first := ""
		for id, s := range l.Settled {
			if first == "" || s.Until.Before(l.Settled[first].Until) {
				first = id
			}
		}
		delete(l.Settled, first)
	}
}

// taken is what was used and what calls under way have reserved.
func (l *ledger) taken() Amount {
	sum := l.Used
	for _, o := range l.Open {
		sum = sum.plus(o.Amount)
	}
	return sum
}

// knows reports whether the call holds or held a reservation here.
func (l *ledger) knows(id string) bool {
	_, open := l.Open[id]
	_, settled := l.Settled[id]
	return open || settled
}

// Reserve reserves a for the call unless exceeded says no of what is taken so far. It returns what was taken before
// and whether the call may go on. With within, a call made for another one that has a reservation here is a part
// of that one and reserves nothing itself.
func Reserve(ctx context.Context, s pipeline.Store, key string, ttl time.Duration, c *messages.Call, a Amount, within bool, exceeded func(taken Amount) bool) (before Amount, ok bool, err error) {
	_, err = pipeline.Change(ctx, s, key, ttl, func(l *ledger) (bool, error) {
		l.prune(time.Now())
		before, ok = l.taken(), true
		if _, part := l.Open[c.Parent]; l.knows(c.ID) || within && part {
			return false, nil
		}
		if exceeded(before) {
			ok = false
			return false, nil
		}
		if l.Open == nil {
			l.Open = map[string]reservation{}
		}
		l.Open[c.ID] = reservation{a, reservedUntil(c)}
		return true, nil
	})
	return before, ok, err
}

// Book turns the call's reservation into use of a. A call without one is settled already, or is part of another.
func Book(ctx context.Context, s pipeline.Store, key string, ttl time.Duration, c *messages.Call, a Amount) error {
	return closeReservation(ctx, s, key, ttl, c, func(l *ledger) {
		l.Used = l.Used.plus(a)
		if l.Settled == nil {
			l.Settled = map[string]reservation{}
		}
		l.Settled[c.ID] = reservation{Until: reservedUntil(c)}
	})
}

// Release drops the call's reservation: nothing was used.
func Release(ctx context.Context, s pipeline.Store, key string, ttl time.Duration, c *messages.Call) error {
	return closeReservation(ctx, s, key, ttl, c, func(*ledger) {})
}

func closeReservation(ctx context.Context, s pipeline.Store, key string, ttl time.Duration, c *messages.Call, book func(*ledger)) error {
	_, err := pipeline.Change(ctx, s, key, ttl, func(l *ledger) (bool, error) {
		if _, open := l.Open[c.ID]; !open {
			return false, nil
		}
		delete(l.Open, c.ID)
		book(l)
		l.prune(time.Now())
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
	return messages.NewFault(messages.StoreUnavailable, "stage %s: the %s cannot be read or written (%v); the call is refused rather than uncounted; try again when the store answers",
		stage, what, err).From(stage)
}
