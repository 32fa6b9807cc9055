package bus

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

const streamBody = `{"model":"m","stream":true,"messages":[]}`

func piece(n int) pipeline.Delta {
	return pipeline.Delta{Source: "w.1", N: n,
		Chunk: fmt.Appendf(nil, `{"id":"1","choices":[{"index":0,"delta":{"content":"%d "}}]}`, n)}
}

// streamed is the end of a call whose target sent so many pieces.
func streamed(pieces int) *messages.Call {
	c := messages.NewCall(messages.Model, "default", []byte(streamBody))
	var text strings.Builder
	for i := range pieces {
		fmt.Fprintf(&text, "%d ", i+1)
	}
	message := fmt.Sprintf(`{"role":"assistant","content":%q}`, text.String())
	c.SetReply([]byte(`{"id":"1","choices":[{"index":0,"message":` + message + `,"finish_reason":"stop"}]}`))
	c.Note(messages.NoteStreamEmitted, pieces)
	return c
}

func TestAnEndWaitsForThePiecesThatItCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPending("x")
		p.addDelta(piece(1))
		p.end(streamed(3))
		var got []int
		ended := make(chan time.Time)
		go func() {
			_, err := p.Wait(t.Context(), func(d pipeline.Delta) { got = append(got, d.N) })
			require.NoError(t, err)
			ended <- time.Now()
		}()
		synctest.Wait()
		require.True(t, p.addDelta(piece(2)))
		synctest.Wait()
		last := time.Now()
		require.True(t, p.addDelta(piece(3)))
		require.Equal(t, last, <-ended, "at once when all are there")
		require.Equal(t, []int{1, 2, 3}, got)
		require.False(t, p.addDelta(piece(4)), "never after the end")
	})
}

// Of four pieces the third is lost, or the last: the reader sees a gap, and gets the rest from the final reply.
func TestALostPieceIsAGapThatTheFinalReplyFills(t *testing.T) {
	t.Parallel()
	came := map[string][]int{"the last": {1, 2, 3}, "one between": {1, 2, 4}, "all but the first": {1}, "all": nil}
	for name, came := range came {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, f := newPending("x"), stream.NewFollower([]byte(streamBody))
				for _, n := range came {
					p.addDelta(piece(n))
				}
				p.end(streamed(4))
				var text strings.Builder
				show := func(chunks [][]byte) {
					for _, c := range chunks {
						for _, choice := range chat.Choices(c) {
							delta, _ := rawjson.Field(choice.Raw, "delta")
							text.WriteString(chat.Msg{Raw: delta}.Text())
						}
					}
				}
				begin := time.Now()
				end, err := p.Wait(t.Context(), func(d pipeline.Delta) { show(f.Delta(d)) })
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(begin), tailGrace)
				rest, fault := f.End(end)
				require.Nil(t, fault)
				show(rest)
				require.Equal(t, "1 2 3 4 ", text.String())
			})
		})
	}
}

// Who follows the call elsewhere gets each piece before the end can leave.
func TestARelayPassesPiecesOnAtOnce(t *testing.T) {
	t.Parallel()
	var passed []int
	p := newPending("x")
	p.pass = func(d pipeline.Delta) { passed = append(passed, d.N) }
	for n := range 100 {
		require.True(t, p.addDelta(piece(n+1)))
		require.Len(t, passed, n+1)
	}
}

// A burst that is larger than what is kept for a slow reader makes no gap for one that reads on, and a reader who does
// not come holds the target up once, for a moment.
func TestABurstWaitsForItsReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		chunk := make([]byte, deltaBytes/10)
		send := func(p *pending, pieces int) (took time.Duration) {
			begin := time.Now()
			for i := range pieces {
				p.room()
				p.addDelta(pipeline.Delta{Source: "w.1", N: i + 1, Chunk: chunk})
			}
			return time.Since(begin)
		}
		p := newPending("x")
		var got []int
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := p.Wait(t.Context(), func(d pipeline.Delta) {
				got = append(got, d.N)
				<-time.After(time.Millisecond) // simulated: the reader's own work on a piece
			})
			require.NoError(t, err)
		}()
		send(p, 200)
		p.end(streamed(200))
		<-done
		require.Len(t, got, 200)
		require.Equal(t, 200, got[199])

		require.Equal(t, behindGrace, send(newPending("y"), 200), "nobody reads")
	})
}
