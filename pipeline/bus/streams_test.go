package bus_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// The pieces of a reply that comes from the owner's own process are not messages, whether or not calls are fused; from
// another process each is one.
func TestOnlyPiecesFromAnotherProcessAreMessages(t *testing.T) {
	t.Parallel()
	const pieces = 20
	both(t, func(t *testing.T, cfg bus.Config) {
		for name, elsewhere := range map[string]bool{"own process": false, "other process": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, cfg)
				target := roles(streamed(pieces, nil, func() {}))
				owner := bus.Options{Entry: true, Manager: manager(t)}
				if elsewhere {
					w.node(bus.Options{Manager: manager(t), Targets: target})
				} else {
					owner.Targets = target
				}
				n := w.node(owner)
				nc := w.conn()
				wire, err := nc.SubscribeSync("shallot.v1.reply.*.*.chunk.>")
				require.NoError(t, err)
				require.NoError(t, nc.Flush())
				require.Equal(t, pieces, follow(t, n))
				require.NoError(t, nc.Flush()) // the server has handed out all that came before the end of the call
				came, _, err := wire.Pending()
				require.NoError(t, err)
				if elsewhere {
					require.Equal(t, pieces, came)
				} else {
					require.Zero(t, came)
				}
			})
		}
	})
}

// Streams do not wait for the connection by which they go, so that they do not wait for its lock, and nobody for them:
// while it writes nothing, a hundred targets say all that they have to say. It comes whole when it writes again.
func TestStreamsDoNotQueueForTheConnection(t *testing.T) {
	t.Parallel()
	const streams, pieces = 100, 20
	w := newWorld(t, bus.Config{})
	line := &heldLine{srv: w.srv}
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), InProcess: line, Log: w.log, Direct: true})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	var begun, said sync.WaitGroup
	begun.Add(streams)
	said.Add(streams)
	still := make(chan struct{})
	target := streamed(pieces, func() { begun.Done(); <-still }, said.Done)
	worker := w.start(bus.Options{Conn: nc, Manager: manager(t), Targets: roles(target)})
	t.Cleanup(func() { _ = stop(worker) })
	n := w.node(bus.Options{Entry: true, Manager: manager(t), Hosts: nobody})
	var all sync.WaitGroup
	var shown atomic.Int32
	for range streams {
		all.Go(func() { shown.Add(int32(follow(t, n))) })
	}
	begun.Wait()
	line.writes.Lock()
	close(still)
	told := make(chan struct{})
	go func() { said.Wait(); close(told) }()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("targets wait for the connection")
	}
	line.writes.Unlock()
	all.Wait()
	require.EqualValues(t, streams*pieces, shown.Load())
}

// heldLine connects to a server by a line that writes nothing while writes is locked.
type heldLine struct {
	srv    nats.InProcessConnProvider
	writes sync.RWMutex
}

func (l *heldLine) InProcessConn() (net.Conn, error) {
	c, err := l.srv.InProcessConn()
	return heldConn{c, &l.writes}, err
}

type heldConn struct {
	net.Conn
	writes *sync.RWMutex
}

func (c heldConn) Write(b []byte) (int, error) {
	c.writes.RLock()
	defer c.writes.RUnlock()
	return c.Conn.Write(b)
}

// streamed is a target that says so many pieces between first, if that is not nil, and then.
func streamed(pieces int, first, then func()) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		if first != nil {
			first()
		}
		for i := range pieces {
			if err := emit(fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":"%d "}}]}`, i)); err != nil {
				return err
			}
		}
		then()
		c.SetReply([]byte(`{"choices":[]}`))
		return nil
	}
}

// follow makes a streamed call and returns how many pieces came in their order, one after another.
func follow(t *testing.T, n *bus.Node) (came int) {
	t.Helper()
	r := chatRequest()
	r.Stream = true
	p, err := n.Accept(t.Context(), r)
	if err != nil {
		t.Error(err)
		return 0
	}
	c, err := p.Wait(t.Context(), func(d pipeline.Delta) {
		if strings.Contains(string(d.Chunk), fmt.Sprintf(`"%d "`, came)) {
			came++
		}
	})
	if err != nil || c.Fault != nil {
		t.Error(err, c)
	}
	return came
}

// What the target of a stored call has said can be asked for in any process, from any piece on, while the call runs.
func TestWhatATargetHasSaidCanBeAskedFor(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"stored": true, "bound": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{})
			say, said := make(chan string), make(chan struct{})
			target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
				for text := range say {
					if err := emit(fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":%q}}]}`, text)); err != nil {
						return err
					}
					said <- struct{}{}
				}
				c.SetReply([]byte(`{"choices":[]}`))
				return nil
			})
			w.node(bus.Options{Manager: manager(t), Targets: roles(target)})
			owner, other := w.node(bus.Options{Entry: true, Manager: manager(t)}), w.node(bus.Options{Manager: manager(t)})
			r := chatRequest()
			r.Stream, r.Keep = true, keep
			p, err := owner.Accept(t.Context(), r)
			require.NoError(t, err)
			tell := func(text string) {
				say <- text
				<-said
			}
			tell("one")
			tell("two")
			ask := func(tenant string, after pipeline.Delta) (last pipeline.Delta, got []string) {
				last = after
				for _, d := range other.Said(t.Context(), tenant, p.ID(), after) {
					got, last = append(got, gjson.GetBytes(d.Chunk, "choices.0.delta.content").Str), d
				}
				return last, got
			}
			_, got := ask("other", pipeline.Delta{})
			require.Empty(t, got)
			last, got := ask("default", pipeline.Delta{})
			if !keep {
				require.Empty(t, got, "nobody goes on with it elsewhere")
			} else {
				require.Equal(t, []string{"one", "two"}, got)
				require.Equal(t, 2, last.N)
				_, got = ask("default", last)
				require.Empty(t, got)
				tell("three")
				last, got = ask("default", last)
				require.Equal(t, []string{"three"}, got)
				_, got = ask("default", pipeline.Delta{Source: "gone.1", N: 2})
				require.Equal(t, []string{"one", "two", "three"}, got, "another process, another run")
			}
			close(say)
			require.Nil(t, wait(t, p).Fault)
			_, got = ask("default", last)
			require.Empty(t, got)
		})
	}
}
