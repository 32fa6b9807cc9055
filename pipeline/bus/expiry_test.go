package bus

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// inProcess is the server, unless processes connect through a proxy.
func (s *stock) inProcess() nats.InProcessConnProvider {
	if s.url != "" {
		return nil
	}
	return s.srv
}

// newNode is a whole node on the stock, with a target for tools.
func (s *stock) newNode(target pipeline.TargetFunc, stages ...pipeline.Stage) *Node {
	s.t.Helper()
	m := &pipeline.Manager{}
	for _, st := range stages {
		require.NoError(s.t, m.Register(st, true))
	}
	return s.part(Options{Manager: m, Entry: true, Targets: []TargetRole{{Kind: messages.Tool, Class: "default",
		Target: target}}})
}

// part is a node that does what its options say, on a connection of its own. Closing that is the death of the process
// as others see it.
func (s *stock) part(o Options) *Node {
	s.t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: s.t.Name(), URL: s.url, InProcess: s.inProcess(), Log: s.log,
		Direct: true})
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	o.Config, o.Conn, o.Log = s.cfg, nc, s.log
	n, err := New(s.t.Context(), o)
	require.NoError(s.t, err)
	require.NoError(s.t, n.Start(context.WithoutCancel(s.t.Context())))
	s.t.Cleanup(func() {
		limit := 10 * time.Second
		if nc.IsClosed() {
			limit = 100 * time.Millisecond // it is dead; nothing of it ends well
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = n.Stop(ctx)
	})
	return n
}

// toolTime is the time that tool gives a call.
const toolTime = 50 * time.Second

// tool runs a tool call to its end.
func (s *stock) tool(n *Node, r pipeline.Request) *messages.Call {
	s.t.Helper()
	r.Kind, r.Tool, r.Deadline = messages.Tool, "t", time.Now().Add(toolTime)
	p, err := n.Accept(s.t.Context(), r)
	require.NoError(s.t, err)
	return s.wait(p)
}

// record is the message that holds a call's first record.
func (s *stock) record(call string) *jetstream.RawStreamMsg {
	stream, err := s.js.Stream(s.t.Context(), "KV_"+jet.BegunBucket)
	require.NoError(s.t, err)
	m, err := stream.GetLastMsgForSubject(s.t.Context(), kvSubject(jet.BegunBucket, messages.Key("default", call, "1")))
	require.NoError(s.t, err)
	return m
}

func done(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	c.SetReply([]byte(`{"charged":true}`))
	return nil
}

// When a call has ended its record loses the outcome, and the server is told when to delete it.
func TestARecordOfBegunWorkIsLetGoAfterItsCall(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]pipeline.Request{"bound": {Body: []byte(`{}`)},
		"stored": {Body: []byte(`{}`), Keep: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStock(t, Config{})
			c := s.tool(s.newNode(done), r)
			require.Nil(t, c.Fault)
			var m *jetstream.RawStreamMsg
			require.Eventually(t, func() bool { m = s.record(c.ID); return m.Header.Get(hdrTTL) != "" }, 30*time.Second,
				10*time.Millisecond)
			left, err := time.ParseDuration(m.Header.Get(hdrTTL))
			require.NoError(t, err)
			require.InDelta(t, time.Hour+toolTime/2, left, float64(toolTime/2+time.Second), "an hour after the call's time")
			require.NotContains(t, string(m.Data), "charged")
			require.Contains(t, string(m.Data), `"state":"done"`)
		})
	}
}

// A record that nobody let go is swept away a day after its call's time, unless the call may go on.
func TestRecordsThatNobodyLetGoAreSweptAway(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	n := s.newNode(done)
	over, later := time.Now().Add(-time.Minute), time.Now().Add(50*time.Hour)
	for call, until := range map[string]time.Time{"lost": over, "queued": over, "parked": over, "long": later} {
		e := protocol.Effect{Kind: protocol.PutBegun, Call: call, N: 1, State: protocol.Begun, By: "dead", Nonce: 1,
			Until: n.clock.at(until)}
		st, _ := n.begun.do(t.Context(), "default", e, nil)
		require.Equal(t, protocol.OK, st.Result)
	}
	// A queue without consumers, so that nobody takes the call out.
	_, err := s.js.Publish(t.Context(), n.subj.Queued(messages.Tool, "nobody", "default", "queued"), []byte(`{}`))
	require.NoError(t, err)
	_, err = n.durable.holds.store.Put(t.Context(), messages.Key("default", "parked"), []byte(`{}`), 0, pipeline.Always())
	require.NoError(t, err)
	inUse := func(call string) (bool, error) { return n.expiry.underWay(t.Context(), call) }

	require.NoError(t, n.begun.sweep(t.Context(), time.Now(), inUse))
	require.Empty(t, s.record("lost").Header.Get(hdrTTL), "its call may have ended just now")
	require.NoError(t, n.begun.sweep(t.Context(), time.Now().Add(25*time.Hour), inUse))
	read := func(call string) protocol.Result {
		st, _ := n.begun.do(t.Context(), "default", protocol.Effect{Kind: protocol.GetBegun, Call: call, N: 1}, nil)
		return st.Result
	}
	require.Eventually(t, func() bool { return read("lost") == protocol.Missing }, 30*time.Second, 50*time.Millisecond)
	for _, call := range []string{"queued", "parked", "long"} {
		require.Equal(t, protocol.OK, read(call), call)
		require.Empty(t, s.record(call).Header.Get(hdrTTL), call)
	}
}

// A large outcome travels as an object of its work alone, and goes when the call has ended; a stored result keeps its
// own copy.
func TestTheObjectsOfAnOutcomeAreDeletedAfterItsCall(t *testing.T) {
	t.Parallel()
	big := append(append([]byte(`"`), bytes.Repeat([]byte("y"), 300<<10)...), '"')
	for name, r := range map[string]pipeline.Request{"bound": {Body: []byte(`{}`)},
		"stored": {Body: []byte(`{}`), Keep: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStock(t, Config{})
			objects, err := s.js.ObjectStore(t.Context(), jet.BodiesObjects)
			require.NoError(t, err)
			held, goOn := make(chan string, 1), make(chan struct{})
			after := pipeline.Stage{Name: "after", Kind: messages.Tool, Order: 10,
				After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
					held <- c.ID
					<-goOn
					return pipeline.Continue(), nil
				}}
			n := s.newNode(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				c.SetReply(big)
				return nil
			}, after)
			of := func(call string) (names []string) {
				all, err := objects.List(t.Context())
				if !errors.Is(err, jetstream.ErrNoObjectsFound) {
					require.NoError(t, err)
				}
				for _, o := range all {
					if strings.HasPrefix(o.Name, "default/"+call+".1/") {
						names = append(names, o.Name)
					}
				}
				return names
			}
			go func() {
				call := <-held
				assertLen(t, of(call), 1)
				close(goOn)
			}()
			c := s.tool(n, r)
			require.Nil(t, c.Fault)
			require.Equal(t, string(big), string(c.Reply()))
			require.Eventually(t, func() bool { return len(of(c.ID)) == 0 }, 30*time.Second, 10*time.Millisecond)
			if r.Keep {
				end, err := s.newNode(done).Result(t.Context(), "default", c.ID)
				require.NoError(t, err)
				require.Equal(t, string(big), string(end.Reply()))
			}
		})
	}
}

func assertLen(t *testing.T, names []string, n int) {
	if len(names) != n {
		t.Errorf("%d objects: %v", n, names)
	}
}

// What this process stored long ago may be about to go: it is stored again for whoever names it now.
func TestABodyThatWasStoredLongAgoIsStoredAnew(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	n := s.newNode(done)
	raw := bytes.Repeat([]byte("z"), 100<<10)
	ref, err := n.codec.store(t.Context(), "default", raw)
	require.NoError(t, err)
	require.NoError(t, n.codec.objects.Delete(t.Context(), ref)) // its age has come
	_, err = n.codec.store(t.Context(), "default", raw)
	require.NoError(t, err)
	_, err = n.codec.fetch(t.Context(), ref)
	require.Error(t, err, "it was stored a moment ago: no second copy")
	n.codec.cache.note(ref, time.Now().Add(-storedAnew))
	_, err = n.codec.store(t.Context(), "default", raw)
	require.NoError(t, err)
	got, err := n.codec.fetch(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, raw, got)
}
