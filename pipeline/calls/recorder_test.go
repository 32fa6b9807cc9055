package calls_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// Stories of few calls are told at once. Where there are many they go out together, in their order, and none waits for
// long or is left behind at the end.
func TestStoriesGoOutTogetherWhereTheyAreMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var want, sent []string
		bursts := map[time.Time]bool{}
		r := calls.New(calls.Options{Sample: 1, Send: func(_ string, data []byte) error {
			bursts[time.Now()] = true
			call, _ := rawjson.FieldString(data, "call")
			sent = append(sent, call)
			return nil
		}})
		tell := func() {
			c := messages.NewCall(messages.Model, "acme", []byte(`{"model":"gpt-4o"}`))
			want = append(want, c.ID)
			r.Owns(c, pipeline.Ownership{}).Left(c, pipeline.Ended)
		}
		for range 20 {
			tell()
			synctest.Wait()
			require.Equal(t, want, sent)
		}
		for range 1000 {
			tell()
			<-time.After(100 * time.Microsecond)
		}
		<-time.After(10 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, want, sent)
		require.Less(t, len(bursts), 200)
		tell()
		tell()
		r.Close()
		require.Equal(t, want, sent)
		require.Zero(t, r.Lost())
	})
}
