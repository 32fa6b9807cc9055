package bus

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// dies has a call run by ever new owners, of which so many die with it. Each makes a part of the call: always the same
// one, or one that nobody has made before. It returns the end of the call and how many owners have died.
func dies(t *testing.T, deaths int, further bool) (end *messages.Call, died int) {
	s := newStock(t, Config{AckWait: time.Second})
	dead := make(chan struct{}, deaths+1)
	run := func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
		if o.call.Parent != "" || died == deaths {
			return echo(p, o, told)
		}
		part := s.call("part 1", "1")
		if further {
			part = s.call(fmt.Sprint("part ", died), "1")
		}
		part.Parent = o.id
		if _, err := p.durables.accept(t.Context(), part, pipeline.Request{}); err != nil {
			t.Error(err)
		}
		died++
		_ = p.nc.Flush()
		p.nc.Close()
		p.die()
		dead <- struct{}{}
		return yielded
	}
	door := s.process(false, run)
	w, err := door.durables.accept(t.Context(), s.call("", `{}`), pipeline.Request{})
	require.NoError(t, err)
	ended := make(chan *messages.Call, 1)
	go func() { ended <- s.wait(w) }()
	for {
		s.process(true, run)
		select {
		case <-dead:
		case end = <-ended:
			return end, died
		}
	}
}

// A call whose owners die with it at the same place is given up; one that comes further with each of them is not.
func TestACallIsGivenUpOnlyWhereItsOwnersDieWithoutProgress(t *testing.T) {
	t.Parallel()
	t.Run("no progress", func(t *testing.T) {
		t.Parallel()
		end, died := dies(t, 20, false)
		require.NotNil(t, end.Fault)
		require.Equal(t, messages.Undeliverable, end.Fault.Code, end.Fault.Message)
		require.GreaterOrEqual(t, died, 3)
		require.LessOrEqual(t, died, 6)
	})
	t.Run("progress", func(t *testing.T) {
		t.Parallel()
		end, died := dies(t, 8, true)
		require.Nil(t, end.Fault)
		require.Equal(t, 8, died)
	})
}
