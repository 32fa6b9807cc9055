package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Errors of stores, to be checked with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrChanged  = errors.New("changed meanwhile")
)

// StoreEntry is a stored value and its revision.
type StoreEntry struct {
	Value    []byte
	Revision uint64
	Created  time.Time
}

// Store keeps small values by key, shared by all processes. Keys are built with messages.Key. It is safe for concurrent
// use. An error that is none of the three above means that the store did not answer.
type Store interface {
	// Get returns the entry, or ErrNotFound.
	Get(ctx context.Context, key string) (StoreEntry, error)
	// Put writes the value under the condition and returns its revision. ttl 0 means for ever. It returns ErrExists or
	// ErrChanged if the condition does not hold; then nothing was written.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration, when Condition) (uint64, error)
	// Delete removes the key. It is not an error if the key does not exist.
	Delete(ctx context.Context, key string) error
	// Keys lists the keys that begin with the prefix, in no order. An empty prefix lists all.
	Keys(ctx context.Context, prefix string) ([]string, error)
}

// Condition says when a Put may write.
type Condition struct {
	absent   bool
	revision uint64
}

// Always writes whether or not the key exists.
func Always() Condition { return Condition{} }

// IfAbsent writes only where no value is; the first writer wins.
func IfAbsent() Condition { return Condition{absent: true} }

// IfRevision writes only over the given revision (compare and set). Revision 0 means that the key must not exist, as
// IfAbsent does.
func IfRevision(r uint64) Condition { return Condition{absent: r == 0, revision: r} }

// Absent reports whether the condition is IfAbsent.
func (c Condition) Absent() bool { return c.absent }

// Revision returns the revision that must be there; 0 if the condition does not ask for one.
func (c Condition) Revision() uint64 { return c.revision }

// Change loads the value under key into v (the zero value if absent), lets edit change it, and stores it. It repeats
// this until no other writer came between, so edit may run several times. edit returns false to leave the store
// unchanged. Each write restarts the value's ttl.
func Change[T any](ctx context.Context, s Store, key string, ttl time.Duration, edit func(v *T) (bool, error)) (T,
	error) {
	for {
		var v T
		when := IfAbsent()
		e, err := s.Get(ctx, key)
		switch {
		case err == nil:
			if err := json.Unmarshal(e.Value, &v); err != nil {
				return v, fmt.Errorf("store: %s: %w", key, err)
			}
			when = IfRevision(e.Revision)
		case !errors.Is(err, ErrNotFound):
			return v, err
		}
		write, err := edit(&v)
		if err != nil || !write {
			return v, err
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return v, fmt.Errorf("store: %s: %w", key, err)
		}
		_, err = s.Put(ctx, key, raw, ttl, when)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, ErrExists) && !errors.Is(err, ErrChanged) {
			return v, err
		}
		if err := ctx.Err(); err != nil {
			return v, err
		}
	}
}
