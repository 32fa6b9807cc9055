package apitest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// WaitingTools is a configuration with tools whose calls wait for a person.
const WaitingTools = `
agent:
  interceptor:
    approval: {policies: [{name: big, tool: add, when: "args.a > 100"}, {name: strict, decisions: [approve, reject]}]}
tool:
  tools:
    - name: shout
      description: Says it loud
      executor: "go:echo"
      effect: read
      approval: strict
      input-schema: {type: object, properties: {text: {type: string}}, required: [text]}
`

// WaitingHost starts a whole installation with an embedded server.
func WaitingHost(t *testing.T, config string) *host.Host {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	text := "version: 1\nnats: {embedded: {port: 0, sync: 1m, data: " + t.TempDir() + "}}\n" + config
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{
		Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second,
		Getenv: func(string) string { return "" },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	return h
}

// Log writes to the log of the test.
func Log(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
