package embed_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
)

// TestOneServerOneDirectory: nats-server lets two servers write to one store; we do not, and the next may have it.
func TestOneServerOneDirectory(t *testing.T) {
	t.Parallel()
	o := embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute}
	first, err := embed.Start(o)
	require.NoError(t, err)
	_, err = embed.Start(o)
	require.ErrorContains(t, err, "--data")
	first.Stop()
	second, err := embed.Start(o)
	require.NoError(t, err)
	second.Stop()
}
