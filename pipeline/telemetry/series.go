package telemetry

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// mostLabels bounds the label sets of one metric, and the names that become labels.
const mostLabels = 500

// labels are the labels of a measurement. They are compared by their address.
type labels struct {
	set    attribute.Set
	option metric.MeasurementOption
}

// series remembers the label sets of a metric by a key, because to make one costs more than to count. It has a bound:
// what comes after mostLabels of them shares one. It is safe for concurrent use.
type series[K comparable] struct {
	list  func(k K) []attribute.KeyValue
	rest  K // what the key of the rest is
	mu    sync.RWMutex
	known map[K]*labels
}

func newSeries[K comparable](rest K, list func(k K) []attribute.KeyValue) *series[K] {
	return &series[K]{list: list, rest: rest, known: map[K]*labels{}}
}

func (s *series[K]) of(k K) *labels {
	s.mu.RLock()
	l := s.known[k]
	s.mu.RUnlock()
	if l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[k] == nil && len(s.known) >= mostLabels {
		k = s.rest
	}
	if l := s.known[k]; l != nil {
		return l
	}
	set := attribute.NewSet(s.list(k)...)
	l = &labels{set, metric.WithAttributeSet(set)}
	s.known[k] = l
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
