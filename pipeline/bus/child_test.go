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

// parent is a stage that makes a call of its own, of the session "child", before its call goes on.
func parent(caller func() pipeline.Caller, told chan<- *messages.Call) pipeline.Stage {
	return pipeline.Stage{Name: "parent", Kind: messages.Model, Order: 10,
		Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Session == "child" {
				return pipeline.Continue(), nil
			}
			child := messages.NewCall(messages.Model, c.Tenant, []byte(chatBody))
			child.Session, child.Parent, child.IdempotencyKey, child.Deadline = "child", c.ID, "k", time.Time{}
			end, err := caller().Call(ctx, child)
			if err != nil {
				return pipeline.Verdict{}, err
			}
			told <- end
			return pipeline.Continue(), nil
		}}
}

// A child is counted against its parent's time and is not stored, so that it waits behind no
// other call even where the process runs as many stored calls as it may.
func TestAChildIsBoundToItsParent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.Running = 1
		w := newWorld(t, cfg)
		var n *bus.Node
		ready, told, seen := make(chan struct{}), make(chan *messages.Call, 4), make(chan *messages.Call, 4)
		s := parent(func() pipeline.Caller { <-ready; return n }, told)
		target := func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
			if c.Session == "child" {
				seen <- c.Clone()
			}
			return echo(ctx, c, emit)
		}
		n = w.node(bus.Options{Entry: true, Manager: manager(t, s), Targets: roles(pipeline.TargetFunc(target))})
		close(ready)
		r := chatRequest()
		r.Keep, r.Deadline = true, time.Now().Add(20*time.Second)
		c := wait(t, accept(t, n, r))
		require.Nil(t, c.Fault, "%v", c.Fault)
		require.Nil(t, (<-told).Fault)
		child := <-seen
		require.Equal(t, c.ID, child.Parent)
		require.False(t, child.Deadline.After(c.Deadline), "it has its parent's time")
	})
}

func TestAChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]bool{"its caller leaves": true, "its time is over": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, cfg bus.Config) {
				w := newWorld(t, cfg)
				var n *bus.Node
				ready, began, ended := make(chan struct{}), make(chan struct{}, 16), make(chan error, 16)
				s := parent(func() pipeline.Caller { <-ready; return n }, make(chan *messages.Call, 16))
				n = w.node(bus.Options{Entry: true, Manager: manager(t, s), Targets: roles(pipeline.TargetFunc(
					func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
						began <- struct{}{}
						<-ctx.Done()
						ended <- ctx.Err()
						return ctx.Err()
					}))})
				close(ready)
				if leave {
					p := accept(t, n, chatRequest())
					<-began
					p.Leave()
					require.NotNil(t, wait(t, p).Fault)
				} else {
					c := runsOut(t, n, chatRequest(), func(*messages.Call) bool { return len(began) > 0 })
					require.NotNil(t, c.Fault)
				}
				require.Error(t, <-ended)
			})
		})
	}
}
