//go:build long

package bus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A question that kills whoever reads it kills five processes at most: three that were asked like any other, and two of
// which each was alone with it. Then its call ends, with a dead letter; other calls go on all the time.
func TestLongAQuestionThatKillsItsWorkersEnds(t *testing.T) {
	t.Parallel()
	srv := launchServer(t)
	x := newInstall(t, srv, srv.url, "stage-0", "stage-1", "target")
	live := []*proc{x.procs["stage-0"], x.procs["stage-1"]}
	body := rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "stage", "die"), "takes", "0s")
	p := accept(t, x.owner, pipeline.Request{Kind: messages.Model, Body: body, Deadline: time.Now().Add(4 * time.Minute)})
	ended := make(chan *messages.Call, 1)
	go func() {
		c, err := p.Wait(t.Context(), nil)
		if err != nil {
			t.Error(err)
		}
		ended <- c
	}()
	begin, died := time.Now(), 0
	again := func(i int) {
		died++
		t.Logf("%s: worker %d is gone", time.Since(begin), died)
		name := fmt.Sprintf("stage-%d", died+1)
		x.launch(name) // as whoever looks after the processes does
		live[i] = x.procs[name]
		require.Nil(t, wait(t, x.accept(messages.Model, "other", 0)).Fault)
	}
	for over := false; !over; {
		select {
		case <-live[0].done:
			again(0)
		case <-live[1].done:
			again(1)
		case c := <-ended:
			require.Equal(t, messages.Undeliverable, c.Fault.Code, c.Fault.Message)
			over = true
		}
	}
	t.Logf("it took %s", time.Since(begin))
	require.LessOrEqual(t, died, 5)
	require.Nil(t, wait(t, x.accept(messages.Model, "after", 0)).Fault)
	st, err := x.owner.JetStream().Stream(t.Context(), jet.DeadStream)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := st.Info(t.Context())
		return err == nil && info.State.Msgs == 1
	}, 30*time.Second, 50*time.Millisecond)
}
