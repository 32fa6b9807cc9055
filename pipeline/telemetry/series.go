package telemetry

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// mostLabels bounds the label sets of one metric, and the names that become labels.
const mostLabels = 500

// series remembers the label sets of a metric by a key, because to make one costs more than to count. It has a bound:
// what comes after mostLabels of them shares one. It is safe for concurrent use.
type series[K comparable] struct {
	labels func(k K) []attribute.KeyValue
	rest   K // what the key of the rest is
	mu     sync.RWMutex
	known  map[K]metric.MeasurementOption
}

func newSeries[K comparable](rest K, labels func(k K) []attribute.KeyValue) *series[K] {
	return &series[K]{labels: labels, rest: rest, known: map[K]metric.MeasurementOption{}}
}

func (s *series[K]) of(k K) metric.MeasurementOption {
	s.mu.RLock()
	o := s.known[k]
	s.mu.RUnlock()
	if o != nil {
		return o
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.known[k]; o != nil {
		return o
	}
	if len(s.known) >= mostLabels {
		k = s.rest
	}
	o = metric.WithAttributeSet(attribute.NewSet(s.labels(k)...))
	s.known[k] = o
	return o
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
