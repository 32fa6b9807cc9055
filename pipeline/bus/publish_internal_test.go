package bus

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Error 10158, "duplicate message id is in process", comes from replicated streams while the first copy is still being
// agreed on: it is no duplicate, and only a PubAck ends the trying (lease.md 1). A responder stands in for the stream,
// because one server alone never says it.
func TestTrap_Lease1_DuplicateInProcessIsNoPubAck(t *testing.T) {
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	defer srv.Stop()
	nc, err := jet.Connect(jet.ConnOptions{InProcess: srv})
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	var asked atomic.Int64
	_, err = nc.Subscribe("stored", func(m *nats.Msg) {
		if asked.Add(1) < 3 {
			_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10158,"description":"duplicate message id is in process"}}`))
			return
		}
		_ = m.Respond([]byte(`{"stream":"X","seq":7}`))
	})
	require.NoError(t, err)
	n := &Node{nc: nc, js: js, subj: messages.Subjects{}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	duplicate, err := n.publishStored(ctx, &nats.Msg{Subject: "stored", Header: nats.Header{hdrMsgID: {"c.1"}}})
	require.NoError(t, err)
	require.False(t, duplicate)
	require.EqualValues(t, 3, asked.Load())
}
