package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// stepped starts a node as if somebody had moved the machine's clock by d since its process began.
func (w *world) stepped(d time.Duration, o bus.Options) *bus.Node {
	w.t.Helper()
	o.Config, o.Log, o.Conn = w.cfg, w.log, w.conn()
	n, err := bus.New(w.t.Context(), o)
	require.NoError(w.t, err)
	n.Stepped(d)
	require.NoError(w.t, n.Start(context.WithoutCancel(w.t.Context())))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	return n
}

// Whoever sets a machine's clock while its processes run changes nothing for their calls: not those of a process that
// began before, nor those that it does for one that began after. Calls run, and end when their time is over.
func TestACallDoesNotNoticeThatAClockIsSet(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ owner, member time.Duration }{
		"forward, for both":                {time.Hour, time.Hour},
		"back, for both":                   {-time.Hour, -time.Hour},
		"forward, and the owner is newer":  {0, time.Hour},
		"forward, and the member is newer": {time.Hour, 0},
		"back, and the owner is newer":     {0, -time.Hour},
		"back, and the member is newer":    {-time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{})
			over := make(chan error, 1)
			target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
				if c.Session == "long" {
					<-ctx.Done()
					over <- context.Cause(ctx)
					return context.Cause(ctx)
				}
				return echo(ctx, c, emit)
			})
			stages := manager(t, through("a", 10))
			w.stepped(row.member, bus.Options{Targets: roles(target), Manager: stages})
			n := w.stepped(row.owner, bus.Options{Entry: true, Hosts: nobody, Manager: stages})
			for name, change := range map[string]func(r *pipeline.Request){
				"bound": func(*pipeline.Request) {}, "stored": func(r *pipeline.Request) { r.Keep = true },
				"keyed": func(r *pipeline.Request) { r.IdempotencyKey = "k" },
				"a tool, at most once": func(r *pipeline.Request) {
					r.Kind, r.Tool, r.Body = messages.Tool, "t", []byte(`{}`)
				},
			} {
				r := chatRequest()
				change(&r)
				require.Nil(t, wait(t, accept(t, n, r)).Fault, name)
			}
			r := chatRequest()
			r.Session, r.Deadline = "long", time.Now().Add(time.Second)
			f := wait(t, accept(t, n, r)).Fault
			require.NotNil(t, f)
			require.Equal(t, messages.DeadlineExceeded, f.Code)
			require.Error(t, <-over, "its worker stopped")
		})
	}
}
