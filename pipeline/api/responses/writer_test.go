package responses_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// soFar reads what is in the log of a stream by now.
func (s *shop) soFar(o responses.Owner, id string) (out []string) {
	s.t.Helper()
	for n := 0; ; n++ {
		list, _, err := s.Events(s.t.Context(), o, id, n)
		if err != nil {
			require.ErrorIs(s.t, err, pipeline.ErrNotFound)
			return out
		}
		for _, e := range list {
			require.Equal(s.t, len(out), responses.Number(e))
			out = append(out, events.Name(e))
		}
	}
}

// Several write one log, each in steps of its own: each event is there once, in order.
func TestManyWritersWriteOneLog(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := s.begun(ann, `,"stream":true`)
	all := events.Replay(messages.ResponsesWire, nil, reply("<a> & b"))
	var wait sync.WaitGroup
	for step := range 4 {
		k := []*responses.Kept{s.Kept, s.second}[step%2]
		wait.Go(func() {
			w := k.Write(ann, r)
			for i := 0; i < len(all); i += step + 1 {
				require.NoError(t, w.Add(t.Context(), all[i:min(i+step+1, len(all))]))
			}
		})
	}
	wait.Wait()
	require.Len(t, s.soFar(ann, r.ID), len(all))
	other := events.Replay(messages.ResponsesWire, nil, reply("else"))
	require.Error(t, s.Write(ann, r).Add(t.Context(), other))
	require.Len(t, s.soFar(ann, r.ID), len(all))
	s.calls.end(ann, r.Call, reply("<a> & b"), nil)
	_, err := s.Look(t.Context(), ann, r.ID)
	require.NoError(t, err)
	require.Error(t, s.Write(ann, r).Add(t.Context(), append(all, all...)), "the log has its end")
	require.Len(t, s.all(s.second, ann, r.ID), len(all))
}

// talk is what a target has said.
type talk struct {
	mu     sync.Mutex
	source string
	pieces [][]byte
	asked  int
}

func (x *talk) say(source string, pieces ...[]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.source != source {
		x.source, x.pieces = source, nil
	}
	x.pieces = append(x.pieces, pieces...)
}

func (x *talk) said(_ context.Context, _, _ string, after pipeline.Delta) (out []pipeline.Delta) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked++
	n := after.N
	if after.Source != x.source {
		n = 0
	}
	for i := n; i < len(x.pieces); i++ {
		out = append(out, pipeline.Delta{Source: x.source, N: i + 1, Chunk: x.pieces[i]})
	}
	return out
}

// A log whose writer is gone goes on from what the target says, with what it lacks, whoever does it and how often.
func TestALogGoesOnWithWhatItsTargetSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, x := newShop(t), &talk{}
		s.Said, s.second.Said = x.said, x.said
		r := s.begun(ann, `,"stream":true`)
		all := events.Replay(messages.ResponsesWire, nil, reply("one"))
		require.NoError(t, s.Write(ann, r).Add(t.Context(), all[:5]))
		one, two := s.Follow(ann, r).Rest(), s.second.Follow(ann, r).Rest()
		more := func(rests ...*responses.Rest) {
			for _, rest := range rests {
				<-time.After(3 * time.Second) // longer than any pause
				rest.More(t.Context())
			}
		}
		more(one, two)
		require.Len(t, s.soFar(ann, r.ID), 5, "nobody knows more")
		x.say("a.1", all[:3]...)
		more(one)
		require.Len(t, s.soFar(ann, r.ID), 5)
		x.say("a.1", all[3:6]...)
		more(one, two)
		require.Len(t, s.soFar(ann, r.ID), 6)
		x.say("a.1", all[6])
		asked := x.asked
		more(two, one)
		one.More(t.Context())
		require.Equal(t, asked+2, x.asked, "it does not ask all the time")
		require.Len(t, s.soFar(ann, r.ID), 7)
		x.say("b.1", events.Replay(messages.ResponsesWire, nil, reply("other"))...)
		more(one, two, one)
		require.Len(t, s.soFar(ann, r.ID), 7, "nobody gets a mixture of two replies")
		x.say("c.1", all[:8]...)
		more(one, two)
		require.Len(t, s.soFar(ann, r.ID), 8, "a run that says the same goes on")
		s.calls.end(ann, r.Call, reply("one"), nil)
		_, err := s.Look(t.Context(), ann, r.ID)
		require.NoError(t, err)
		x.say("c.1", all[8:]...)
		more(one, two, one)
		require.Len(t, s.all(s.Kept, ann, r.ID), len(all))
		asked = x.asked
		more(one)
		require.Equal(t, asked, x.asked, "after the end there is nothing to ask for")
	})
}

// The same for the stream of a chat call.
func TestTheLogOfAChatStreamGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, x := newShop(t), &talk{}
		s.second.Said = x.said
		call := messages.NewID()
		c := s.KeepChat(t.Context(), ann, call, []byte(`{}`))
		chunk := func(i int) []byte {
			return fmt.Appendf(nil, `{"id":"x","choices":[{"index":0,"delta":{"content":"<%d>"},"finish_reason":null}]}`, i)
		}
		require.NoError(t, c.Add(t.Context(), [][]byte{chunk(0), chunk(1)}))
		again, err := s.second.Chat(t.Context(), ann, call)
		require.NoError(t, err)
		rest := again.Rest()
		x.say("a.1", chunk(0), chunk(1), chunk(2))
		require.Equal(t, 1, rest.More(t.Context()), "the batch that it wrote")
		chunks, last, fault, err := again.Next(t.Context(), 1)
		require.NoError(t, err)
		require.False(t, last)
		require.Nil(t, fault)
		require.Len(t, chunks, 1)
		require.JSONEq(t, string(chunk(2)), string(chunks[0]))
		require.NoError(t, c.Add(t.Context(), [][]byte{chunk(2), chunk(3)}), "its writer is there after all")
		require.NoError(t, c.Close(t.Context(), nil))
		_, last, _, err = again.Next(t.Context(), 3)
		require.NoError(t, err)
		require.True(t, last)
	})
}

// A store that does not answer for a moment delays the rest, and nothing is lost or written twice.
func TestALogGoesOnWhenItsStoreAnswersAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, x := newShop(t), &talk{}
		store := &moody{Store: s.store}
		k := responses.New(store, s.calls)
		k.Said = x.said
		r := s.begun(ann, `,"stream":true`)
		all := events.Replay(messages.ResponsesWire, nil, reply("one"))
		rest := k.Follow(ann, r).Rest()
		for i, e := range all {
			x.say("a.1", e)
			store.away = i%2 == 0
			<-time.After(3 * time.Second)
			rest.More(t.Context())
		}
		store.away = false
		<-time.After(3 * time.Second)
		rest.More(t.Context())
		require.Len(t, s.soFar(ann, r.ID), len(all))
	})
}

// moody is a store that may be away.
type moody struct {
	pipeline.Store
	away bool
}

func (m *moody) Put(ctx context.Context, key string, value []byte, ttl time.Duration, when pipeline.Condition) (uint64,
	error) {
	if m.away {
		return 0, errors.New("away")
	}
	return m.Store.Put(ctx, key, value, ttl, when)
}
