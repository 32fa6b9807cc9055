package telemetry

import (
	"context"
	"math"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// tables are the metrics that this process counts itself. The library takes more than a microsecond for a measurement,
// most of it to look through labels that do not change. It reads the tables when somebody asks. What they hold is
// cumulative and has fixed buckets, so they serve /metrics only: a collector may want it otherwise.
type tables struct {
	scope instrumentation.Scope
	all   []*table
}

var _ sdkmetric.Producer = (*tables)(nil)

// table adds a metric. With bounds it is a histogram. All are added before the first is read.
func (ts *tables) table(name, unit, what string, bounds []float64) *table {
	t := &table{index: len(ts.all), name: name, unit: unit, what: what, bounds: bounds,
		cells: map[attribute.Distinct]*cell{}}
	ts.all = append(ts.all, t)
	return t
}

// Produce implements sdkmetric.Producer.
func (ts *tables) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	out := metricdata.ScopeMetrics{Scope: ts.scope}
	for _, t := range ts.all {
		if data := t.data(time.Now()); data != nil {
			out.Metrics = append(out.Metrics,
				metricdata.Metrics{Name: t.name, Description: t.what, Unit: t.unit, Data: data})
		}
	}
	return []metricdata.ScopeMetrics{out}, nil
}

// table is one metric. It is safe for concurrent use.
type table struct {
	index            int // in tables.all, and in labels.cells
	name, unit, what string
	bounds           []float64 // of a histogram; nil: a sum
	falls            bool      // the sum may fall
	mu               sync.Mutex
	cells            map[attribute.Distinct]*cell
}

// cell is what was measured with one set of labels.
type cell struct {
	set    attribute.Set
	began  time.Time
	value  atomic.Int64    // of a sum
	total  atomic.Uint64   // of a histogram: the bits of a float64
	counts []atomic.Uint64 // of a histogram: for each bound, and for what is above
}

// at returns the cell of a set of labels.
func (t *table) at(l *labels) *cell {
	if c := l.cells[t.index].Load(); c != nil {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cells[l.set.Equivalent()]
	if c == nil {
		c = &cell{set: l.set, began: time.Now()}
		if t.bounds != nil {
			c.counts = make([]atomic.Uint64, len(t.bounds)+1)
		}
		t.cells[l.set.Equivalent()] = c
	}
	l.cells[t.index].Store(c)
	return c
}

// record counts a value of a histogram.
func (t *table) record(v float64, l *labels) {
	c := t.at(l)
	c.counts[sort.SearchFloat64s(t.bounds, v)].Add(1)
	for {
		old := c.total.Load()
		if c.total.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// data is what was measured until now; nil if nothing was.
func (t *table) data(now time.Time) metricdata.Aggregation {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cells) == 0 {
		return nil
	}
	if t.bounds == nil {
		out := metricdata.Sum[int64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: !t.falls}
		for _, c := range t.cells {
			out.DataPoints = append(out.DataPoints,
				metricdata.DataPoint[int64]{Attributes: c.set, StartTime: c.began, Time: now, Value: c.value.Load()})
		}
		return out
	}
	out := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
	for _, c := range t.cells {
		p := metricdata.HistogramDataPoint[float64]{Attributes: c.set, StartTime: c.began, Time: now, Bounds: t.bounds,
			Sum: math.Float64frombits(c.total.Load())}
		for i := range c.counts {
			n := c.counts[i].Load()
			p.BucketCounts, p.Count = append(p.BucketCounts, n), p.Count+n
		}
		out.DataPoints = append(out.DataPoints, p)
	}
	return out
}

// sum is a metric that adds whole numbers up: in a table, or with an instrument of the library, whose counters and
// those that may fall have this method in common.
type sum struct {
	own *table // nil: the library counts
	sdk interface {
		Add(ctx context.Context, n int64, o ...metric.AddOption)
	}
}

func (s sum) add(n int64, l *labels) {
	if s.own != nil {
		s.own.at(l).value.Add(n)
		return
	}
	s.sdk.Add(background, n, l.option)
}

// histogram is a metric that counts values in buckets, as [sum] does.
type histogram struct {
	own *table
	sdk metric.Float64Histogram
}

func (h histogram) record(v float64, l *labels) {
	if h.own != nil {
		h.own.record(v, l)
		return
	}
	h.sdk.Record(background, v, l.option)
}
