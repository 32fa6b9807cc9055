package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/shallot-nats/shallot/messages"
)

// point is one value of a gauge, with its labels.
type point struct {
	value  int64
	labels []attribute.KeyValue
}

// gauge reads values when somebody looks.
func (i *instruments) gauge(name, what string, read func() []point) {
	_, err := i.meter.Int64ObservableGauge(name, metric.WithDescription(what), metric.WithInt64Callback(observe(read)))
	i.failed = errors.Join(i.failed, err)
}

// count is gauge for what only grows.
func (i *instruments) count(name, what string, read func() []point) {
	_, err := i.meter.Int64ObservableCounter(name, metric.WithDescription(what), metric.WithInt64Callback(observe(read)))
	i.failed = errors.Join(i.failed, err)
}

func observe(read func() []point) metric.Int64Callback {
	return func(_ context.Context, o metric.Int64Observer) error {
		for _, p := range read() {
			o.Observe(p.value, metric.WithAttributes(p.labels...))
		}
		return nil
	}
}

// Process is what a process is asked when somebody reads the metrics. Functions that are nil are not asked. All
// are asked at each scrape.
type Process struct {
	// Stages returns which stages are on.
	Stages func() []StageState
	// Queues returns the queues of stored calls as this process sees them, Classes the targets' work.
	Queues  func() []QueueState
	Classes func() []ClassState
	// Connected reports whether there is a NATS server, Reconnects how often it was found again.
	Connected  func() bool
	Reconnects func() int64
	// Approvals is how many calls wait for an answer, of all processes.
	Approvals func() int64
	// Lost is how many events of calls were lost; Dead, Late, HandedBack and Refused are the bus's counters.
	Lost, Dead, Late, HandedBack, Refused func() int64
}

// StageState says whether a stage is on.
type StageState struct {
	Kind  messages.Kind
	Stage string
	On    bool
}

// QueueState is how full a queue of stored calls is.
type QueueState struct {
	Queue          string
	Waiting, Taken int64 // not yet pulled; pulled and not ended
}

// ClassState is the room for target work of one class in this process, and who waits for it here.
type ClassState struct {
	Kind          messages.Kind
	Class         string
	Slots, Used   int64
	Queued, Lined int64 // offered and not begun; owned here and in line
}

// Watch has the metrics of a process read from it. It may be called once.
func (t *Telemetry) Watch(p Process) error {
	if t == nil || t.meters == nil {
		return nil
	}
	i := t.meters
	one := func(read func() int64) func() []point { return func() []point { return []point{{value: read()}} } }
	for _, c := range []struct {
		name, what string
		read       func() int64
	}{
		{"shallot.nats.reconnects", "connections that were made again", p.Reconnects},
		{"shallot.events.lost", "events of calls that could not be sent", p.Lost},
		{"shallot.dead.letters", "dead letters that this process wrote", p.Dead},
		{"shallot.hops.late", "questions that were read after their time", p.Late},
		{"shallot.handed.back", "stored calls that this process handed back", p.HandedBack},
		{"shallot.replies.refused", "requests whose reply subject was not an inbox", p.Refused},
	} {
		if c.read != nil {
			i.count(c.name, c.what, one(c.read))
		}
	}
	if p.Approvals != nil {
		i.gauge("shallot.approvals.pending", "calls that wait for an answer", one(p.Approvals))
	}
	if p.Connected != nil {
		i.gauge("shallot.nats.connected", "1 while there is a NATS server", one(func() int64 { return flag(p.Connected()) }))
	}
	i.states(p)
	return i.failed
}

// states are the gauges with labels.
func (i *instruments) states(p Process) {
	if p.Stages != nil {
		i.gauge("shallot.stage.enabled", "1 while the stage is on", func() (out []point) {
			for _, s := range p.Stages() {
				out = append(out, point{flag(s.On), []attribute.KeyValue{kindKey.String(string(s.Kind)), stageKey.String(s.Stage)}})
			}
			return out
		})
	}
	if p.Queues != nil {
		queues := func(name, what string, value func(q QueueState) int64) {
			i.gauge(name, what, func() (out []point) {
				for _, q := range p.Queues() {
					out = append(out, point{value(q), []attribute.KeyValue{queueKey.String(q.Queue)}})
				}
				return out
			})
		}
		queues("shallot.queue.pending", "stored calls that nobody has pulled", func(q QueueState) int64 { return q.Waiting })
		queues("shallot.queue.taken", "stored calls that are pulled and have not ended",
			func(q QueueState) int64 { return q.Taken })
	}
	if p.Classes != nil {
		classes := func(name, what string, value func(c ClassState) int64) {
			i.gauge(name, what, func() (out []point) {
				for _, c := range p.Classes() {
					out = append(out, point{value(c), []attribute.KeyValue{kindKey.String(string(c.Kind)), classKey.String(c.Class)}})
				}
				return out
			})
		}
		classes("shallot.slots", "work of the class that this process can do at once",
			func(c ClassState) int64 { return c.Slots })
		classes("shallot.slots.used", "work of the class that this process does", func(c ClassState) int64 { return c.Used })
		classes("shallot.slots.queued", "work of the class that waits for a slot here",
			func(c ClassState) int64 { return c.Queued })
		classes("shallot.line.waiting", "calls of this process that wait in line for the class",
			func(c ClassState) int64 { return c.Lined })
	}
}

func flag(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
