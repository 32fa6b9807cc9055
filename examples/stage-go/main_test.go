package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/host"
)

const config = `version: 1
nats: {embedded: {port: -1, sync: 1m}}
stages:
  - {name: upper, kind: model, order: 86, phases: [after], reads: [reply], writes: [reply.choices]}
`

func TestRepliesAreInCapitals(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	l, err := host.Load(file, nil, map[string]string{"nats.embedded.data": t.TempDir()})
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, h.Stop(ctx))
	})
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	require.NoError(t, serve(nc))

	ask := func(body string) []byte {
		m, err := nc.Request("shallot.v1.model.request", []byte(body), 30*time.Second)
		require.NoError(t, err)
		return m.Data
	}
	said := ask(`{"model":"demo/echo","messages":[{"role":"user","content":"hi there"}]}`)
	require.Equal(t, "HI THERE", gjson.GetBytes(said, "choices.0.message.content").Str, "%s", said)
	failed := ask(`{"model":"demo/fail","messages":[{"role":"user","content":"fail 401"}]}`)
	require.Equal(t, "provider_auth", gjson.GetBytes(failed, "error.code").Str, "a fault passes")
}
