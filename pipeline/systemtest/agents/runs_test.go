package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

func TestARunOnTheBus(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`)}, ""
		}
		return nil, "done"
	}
	door, _ := s.node(true, false), s.node(false, true)
	p, err := door.Accept(t.Context(), request())
	require.NoError(t, err)
	require.Contains(t, text(t, s.end(p)), "done")
	require.Equal(t, map[string]int{`{"at":1}`: 1, `{"at":2}`: 1}, s.tools)
	again, err := door.Result(t.Context(), "acme", p.ID())
	require.NoError(t, err)
	require.Contains(t, text(t, again), "done", "a run's end is kept")
}

func TestARunThatWaitsForAPersonSurvivesEverythingAndIsDecidedOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "pay", `{"amount":50}`), call("b", "look", `{}`),
				call("c", "pay", `{"amount":60}`)}, ""
		}
		return nil, "done"
	}
	first := s.node(true, true)
	p, err := first.Accept(t.Context(), request())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = p.Wait(ctx, nil)
	require.ErrorIs(t, err, pipeline.ErrHeld, "nobody waits in a process")
	held := s.held(first, p.ID())
	require.Equal(t, "agent", held.Stage)
	require.Contains(t, string(held.Question), `"auto_approved":true`)
	require.Empty(t, s.tools)
	_, err = first.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"id":"a","decision":"approve"}`), "ann")
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.ErrorContains(t, err, "no decision yet about c")
	s.stop(first)

	second := s.node(true, true)
	held = s.held(second, p.ID())
	require.Contains(t, string(held.Question), `"by":"ann"`, "a part of the decisions is kept")
	var all sync.WaitGroup
	var won, lost atomic.Int32
	for i := range 100 {
		all.Go(func() {
			_, err := second.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"decision":"approve"}`), fmt.Sprint("p", i))
			if err == nil {
				won.Add(1)
				return
			}
			if f := messages.AsFault(err, ""); f.Code == messages.Conflict && strings.Contains(f.Message,
				"decided already, by p") {
				lost.Add(1)
				return
			}
			t.Error(err)
		})
	}
	all.Wait()
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 99, lost.Load())
	require.Eventually(t, func() bool {
		c, _, err := second.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "done")
	}, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, map[string]int{`{"amount":50}`: 1, `{}`: 1, `{"amount":60}`: 1}, s.tools)
	require.Len(t, s.turns[0], 1, "the model was not asked again")
}

func TestARunIsStreamedAsOneReply(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "look", `{}`)}, "let me look"
		}
		return nil, "done"
	}
	door, _ := s.node(true, false), s.node(true, true)
	r := request()
	r.Stream = true
	p, err := door.Accept(t.Context(), r)
	require.NoError(t, err)
	f := stream.NewFollower(r.Body)
	var chunks [][]byte
	c, err := p.Wait(t.Context(), func(d pipeline.Delta) { chunks = append(chunks, f.Delta(d)...) })
	require.NoError(t, err)
	rest, fault := f.End(c)
	require.Nil(t, fault)
	whole, err := chat.Assemble(append(chunks, rest...))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.turns[0][0] + " let me look\n\n" + s.turns[1][0] + " done"
	require.Equal(t, want, chat.Choices(whole)[0].Message().Text())
	require.Equal(t, want, text(t, c))
}

func TestWhatNobodyDecidesInTimeIsReadAsARejection(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, request []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "brief", `{}`)}, ""
		}
		msgs := chat.Messages(request)
		return nil, msgs[len(msgs)-1].Text()
	}
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, _, err := n.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "nobody decided in time")
	}, 30*time.Second, 50*time.Millisecond)
	require.Empty(t, s.tools)
}

// A stage of the tool chain holds a call of a run by itself: the run waits for it without a process.
func TestARunWaitsForACallThatAStageHolds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "guarded", `{}`), call("b", "look", `{"b":1}`)}, ""
		}
		return nil, "done"
	}
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	held := s.held(n, p.ID())
	require.Contains(t, string(held.Question), "waits")
	_, err = n.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"decision":"approve"}`), "ann")
	require.ErrorContains(t, err, "decide about that call")
	var child string
	require.Eventually(t, func() bool {
		list, err := n.HeldCalls(t.Context(), "acme")
		for _, h := range list {
			if h.Kind == messages.Tool {
				child = h.Call
			}
		}
		return err == nil && child != ""
	}, 30*time.Second, 20*time.Millisecond)
	_, err = n.Decide(t.Context(), "acme", child, json.RawMessage(`"yes"`), "ann")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, _, err := n.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "done")
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, map[string]int{`{}`: 1, `{"b":1}`: 1}, s.tools)
}

func TestACancelledRunTakesItsCallsAlong(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(int, []byte) ([]map[string]any, string) { return nil, "never" }
	asked, gone := make(chan struct{}), make(chan struct{})
	s.up.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that its client is gone
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	<-asked
	n.Cancel(p.ID())
	select {
	case <-gone:
	case <-t.Context().Done():
	}
	require.Equal(t, messages.Cancelled, s.end(p).Fault.Code)
}
