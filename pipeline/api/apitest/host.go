package apitest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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

// Host starts a whole installation in this process and stops it at the end of the test. text is its configuration
// without the version; where it says nothing about NATS there is an embedded server that listens nowhere. edit may be
// nil, and changes how the process starts.
func Host(t testing.TB, text string, edit func(o *host.Options)) *host.Host {
	t.Helper()
	h, err := TryHost(t, text, edit)
	require.NoError(t, err)
	return h
}

// TryHost is Host where the start may fail.
func TryHost(t testing.TB, text string, edit func(o *host.Options)) (*host.Host, error) {
	t.Helper()
	if !strings.Contains("\n"+text, "\nnats:") {
		text = "nats: {embedded: {port: 0, sync: 1m, data: " + t.TempDir() + "}}\n" + text
	}
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\n"+text), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	o := host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second,
		Getenv: func(string) string { return "" }}
	if edit != nil {
		edit(&o)
	}
	h, err := host.Start(context.WithoutCancel(t.Context()), o)
	if err == nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			_ = h.Stop(ctx)
		})
	}
	return h, err
}

// Log writes to the log of the test.
func Log(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
