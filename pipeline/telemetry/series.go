package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// mostLabels bounds the label sets of one metric, and the names that become labels.
const mostLabels = 500

// labels are the labels of a measurement. They are compared by their address.
type labels struct {
	set    attribute.Set
	option metric.MeasurementOption
	cells  []atomic.Pointer[cell] // by table: what was measured with these labels; nil until something is
}

// series remembers the label sets of a metric by a key, because to make one costs more than to count. It has a bound:
// what comes after mostLabels of them shares one. It is safe for concurrent use.
type series[K comparable] struct {
	own   *tables // nil: the library counts
	list  func(k K) []attribute.KeyValue
	rest  K          // what the key of the rest is
	mu    sync.Mutex // held by who adds
	known atomic.Pointer[map[K]*labels]
}

// newSeries makes a series for measurements in own, all of whose tables are there.
func newSeries[K comparable](own *tables, rest K, list func(k K) []attribute.KeyValue) *series[K] {
	s := &series[K]{own: own, list: list, rest: rest}
	s.known.Store(&map[K]*labels{})
	return s
}

// of returns the labels of a key. They are read far more often than added, so readers take no lock.
func (s *series[K]) of(k K) *labels {
	if l := (*s.known.Load())[k]; l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.known.Load()
	if known[k] == nil && len(known) >= mostLabels {
		k = s.rest
	}
	if l := known[k]; l != nil {
		return l
	}
	set := attribute.NewSet(s.list(k)...)
	l := &labels{set: set, option: metric.WithAttributeSet(set)}
	if s.own != nil {
		l.cells = make([]atomic.Pointer[cell], len(s.own.all))
	}
	more := maps.Clone(known)
	more[k] = l
	s.known.Store(&more)
	return l
}

// names are values that callers and providers choose and that may be labels all the same: those that a provider has
// answered to, up to a bound.
type names struct {
	mu    sync.RWMutex
	known map[string]bool
}

// label is the name, or [other]. proved says that somebody answered to the name.
func (n *names) label(name string, proved bool) string {
	n.mu.RLock()
	is := n.known[name]
	n.mu.RUnlock()
	if is || name == "" {
		return name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !proved || len(n.known) >= mostLabels {
		return other
	}
	if n.known == nil {
		n.known = map[string]bool{}
	}
	n.known[name] = true
	return name
}
