package isolation

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A gateway may do what it needs to make room for responses: see who keeps how much.
func TestAGatewaySeesWhoKeepsHowMuch(t *testing.T) {
	t.Parallel()
	i := start(t, "")
	r := ask(t, i.base, acme, "POST", "/v1/responses", responsesBody)
	require.Equal(t, 200, r.status, r)
	nc, err := nats.Connect(i.url("gateway"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	b, err := jet.OpenBucket(t.Context(), js, jet.ResponsesBucket)
	require.NoError(t, err)
	used, most, err := b.Size(t.Context())
	require.NoError(t, err)
	require.Positive(t, used)
	require.EqualValues(t, 1<<30, most)
	n := 0
	require.NoError(t, b.Each(t.Context(), func(key string, bytes int64) {
		require.True(t, strings.HasPrefix(key, acme+"."), key)
		require.Positive(t, bytes)
		n++
	}))
	require.Positive(t, n)
}
