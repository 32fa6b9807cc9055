package bus

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A process that stands still is given the few calls that its pull may still bring. Others run the rest.
func TestAProcessThatStandsStillIsGivenFewStoredCalls(t *testing.T) {
	t.Parallel()
	const calls = 40
	s := newStock(t, Config{AckWait: time.Minute})
	asked, err := s.nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.>")
	require.NoError(t, err)
	q := s.cfg.queues()[0]
	prefix := s.nc.NewInbox() + "."
	given, err := s.nc.SubscribeSync(prefix + ">")
	require.NoError(t, err)
	newPuller(s.nc, jet.CallsStream, q.consumer(), prefix, s.cfg.Running).look(time.Now())
	m, err := asked.NextMsg(10 * time.Second)
	require.NoError(t, err)
	var pull struct{ Batch int }
	require.NoError(t, json.Unmarshal(m.Data, &pull))
	require.LessOrEqual(t, pull.Batch, pullMost)

	caller := s.process(false, nil)
	var all []pipeline.Pending
	for range calls {
		p, err := caller.durables.accept(t.Context(), s.call("", "{}"), pipeline.Request{Kind: messages.Model})
		require.NoError(t, err)
		all = append(all, p)
	}
	require.Eventually(t, func() bool { n, _, err := given.Pending(); return err == nil && n == pullMost },
		10*time.Second, 10*time.Millisecond)
	s.process(true, echo)
	ends := make(chan *messages.Call, calls)
	for _, p := range all {
		go func() {
			if c, err := p.Wait(t.Context(), nil); err == nil {
				ends <- c
			}
		}()
	}
	for range calls - pullMost {
		require.Nil(t, (<-ends).Fault)
	}
	n, _, err := given.Pending()
	require.NoError(t, err)
	require.Equal(t, pullMost, n, "what came to it while it stood still")
}
