package host

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/telemetry"
)

// startTelemetry begins to measure, if anything is to be measured.
func (h *Host) startTelemetry(ctx context.Context, o Options, name string) (err error) {
	h.Telemetry, err = telemetry.New(ctx, telemetry.Options{
		Service: "shallot", Version: Version(), Name: name, Root: h.Config.Bus.Root, Metrics: h.Config.Telemetry.Metrics,
		Prompts: h.Config.Telemetry.Prompts, Getenv: o.Getenv, Server: h.Models.server, Log: h.log,
	})
	return err
}

// observe has a node tell what happens to its calls.
func (h *Host) observe(n *bus.Options) {
	all := pipeline.Observers{h.seen.recorder}
	if o := h.Telemetry.Observer(); o != nil {
		all = pipeline.Observers{o, h.seen.recorder} // the story names the trace
	}
	n.Observer, n.Root = all, h.Telemetry.Root()
	for i := range n.Targets {
		t := &n.Targets[i]
		t.Target = h.Telemetry.Target(t.Kind, t.Class, t.Target)
	}
}

// queuesTime bounds how long a reader of the metrics waits for the server.
const queuesTime = time.Second

// measure has the metrics of this process read from what it knows.
func (h *Host) measure() error {
	count := func(of func(c bus.Counters) int64) func() int64 {
		return func() int64 { return of(h.Node.Counters()) }
	}
	return h.Telemetry.Watch(telemetry.Process{
		Stages: func() (out []telemetry.StageState) {
			asked := h.Node.Asked()
			for _, s := range h.Manager.Stages("") {
				out = append(out, telemetry.StageState{Kind: s.Kind, Stage: s.Name, On: s.Enabled(),
					Asked: int64(asked[string(s.Kind)+"/"+s.Name])})
			}
			return out
		},
		Queues: func() (out []telemetry.QueueState) {
			ctx, cancel := context.WithTimeout(context.Background(), queuesTime)
			defer cancel()
			for _, q := range h.Node.Queues(ctx) {
				out = append(out, telemetry.QueueState{Queue: q.Name, Waiting: q.Pending, Taken: q.Taken})
			}
			return out
		},
		Classes: func() (out []telemetry.ClassState) {
			for _, c := range h.Node.Capacity() {
				out = append(
					out,
					telemetry.ClassState{Kind: c.Kind, Class: plain(c.Class), Slots: int64(c.Busy + c.Free), Used: int64(c.Busy),
						Queued: int64(c.Queued), Lined: int64(c.Waiting)},
				)
			}
			return out
		},
		Connected: h.Conn.IsConnected, Reconnects: func() int64 { return int64(h.Conn.Stats().Reconnects) },
		Lost:       h.seen.recorder.Lost,
		Approvals:  count(func(c bus.Counters) int64 { return c.Parked }),
		Dead:       count(func(c bus.Counters) int64 { return c.Dead }),
		Late:       count(func(c bus.Counters) int64 { return c.Late }),
		HandedBack: count(func(c bus.Counters) int64 { return c.HandedBack }),
		Refused:    count(func(c bus.Counters) int64 { return c.Refused }),
	})
}

// plain is a class as it is configured.
func plain(token string) string {
	if name, ok := messages.Untoken(token); ok {
		return name
	}
	return token
}
