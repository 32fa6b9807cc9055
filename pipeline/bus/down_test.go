package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A server that is down is said at the caller's own deadline, with an idempotency key and without; not when a default
// of ours is over.
func TestAcceptWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, bus.Config{}, embed.Options{Port: -1})
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), URL: w.srv.ClientURL(), Log: w.log})
	require.NoError(t, err)
	n := w.start(bus.Options{Conn: nc, Entry: true, Targets: roles(pipeline.TargetFunc(echo))})
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	w.srv.Stop()
	for name, key := range map[string]string{"without a key": "", "with a key": "k"} {
		r := chatRequest()
		r.IdempotencyKey, r.Deadline = key, time.Now().Add(300*time.Millisecond)
		begin := time.Now()
		_, err := n.Accept(t.Context(), r)
		var f *messages.Fault
		require.ErrorAs(t, err, &f, name)
		require.Contains(t, []messages.Code{messages.DeadlineExceeded, messages.StoreUnavailable}, f.Code, name)
		require.Less(t, time.Since(begin), 8*time.Second, "%s: the default is 10 s", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() { _ = n.Stop(ctx); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("a stop does not end with its context while the server is away")
	}
	nc.Close()
}
