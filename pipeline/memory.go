package pipeline

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"
)

// Memory is a Store in this process, for tests and for embedding. The zero value is ready.
type Memory struct {
	mu   sync.Mutex
	rev  uint64
	data map[string]memEntry
}

type memEntry struct {
	StoreEntry
	until time.Time
}

var _ Store = (*Memory)(nil)

// Get returns the entry, or ErrNotFound. An entry expires exactly when its age reaches its ttl.
func (m *Memory) Get(_ context.Context, key string) (StoreEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.live(key)
	if !ok {
		return StoreEntry{}, ErrNotFound
	}
	e.Value = bytes.Clone(e.Value) // the caller may change what it gets
	return e.StoreEntry, nil
}

// Put writes the value if the condition holds.
func (m *Memory) Put(_ context.Context, key string, value []byte, ttl time.Duration, when Condition) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.live(key)
	switch {
	case when.absent && ok:
		return 0, ErrExists
	case when.revision != 0 && (!ok || e.Revision != when.revision):
		return 0, ErrChanged
	}
	if m.data == nil {
		m.data = map[string]memEntry{}
	}
	m.rev++
	n := memEntry{StoreEntry: StoreEntry{Value: append([]byte(nil), value...), Revision: m.rev, Created: time.Now()}}
	if ttl > 0 {
		n.until = n.Created.Add(ttl)
	}
	m.data[key] = n
	return m.rev, nil
}

// Delete removes the key.
func (m *Memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.data, key)
	return nil
}

// Keys lists the live keys that begin with the prefix.
func (m *Memory) Keys(_ context.Context, prefix string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for k := range m.data {
		if _, ok := m.live(k); ok && strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	return out, nil
}

func (m *Memory) live(key string) (memEntry, bool) {
	e, ok := m.data[key]
	if ok && !e.until.IsZero() && !time.Now().Before(e.until) {
		delete(m.data, key)
		return memEntry{}, false
	}
	return e, ok
}
