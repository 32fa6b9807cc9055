package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
)

// said reads log lines until one has the message, and returns its field.
func said(t *testing.T, lines *bufio.Scanner, message, field string) string {
	t.Helper()
	for lines.Scan() {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) == nil && line["msg"] == message {
			return line[field].(string)
		}
	}
	require.FailNow(t, "the log ended", "without %q", message)
	return ""
}

func TestAWorkerHasProbesMetricsAndProfilesWhereItIsTold(t *testing.T) {
	t.Setenv("LOG_FORMAT", "json")
	dir := t.TempDir()
	server, err := embed.Start(embed.Options{Dir: filepath.Join(dir, "js"), Port: -1})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	file := filepath.Join(dir, "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\ntelemetry: {pprof: true}\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--config", file, "--nats", server.ClientURL(), "--stages", "logging",
			"--admin", "127.0.0.1:0"}, io.Discard, w)
		_ = w.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(r)
	at := said(t, lines, "probes and metrics", "at")
	go func() { _, _ = io.Copy(io.Discard, r) }() // nobody else reads the log
	get := func(path string) (int, string) {
		a, err := http.Get(at + path)
		require.NoError(t, err)
		defer func() { _ = a.Body.Close() }()
		text, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(text)
	}
	status, ready := get("/readyz")
	require.Equal(t, 200, status, ready)
	require.NotContains(t, ready, `"stages"`, "it asks no stage, so who serves them is not its business")
	status, metrics := get("/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, metrics, "shallot_nats_connected 1")
	status, profile := get("/debug/pprof/goroutine?debug=1")
	require.Equal(t, 200, status)
	require.Contains(t, profile, "goroutine profile")
	status, _ = get("/v1/models")
	require.Equal(t, 404, status, "it is not a gateway")
	stop()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.FailNow(t, "the worker did not stop")
	}
	_, err = http.Get(at + "/livez")
	require.Error(t, err, "the listener has ended with the worker")
}

func TestAWorkerBeyondLoopbackNeedsKeys(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"--nats", "nats://127.0.0.1:1", "--admin", "0.0.0.0:0"}, io.Discard, io.Discard)
	require.ErrorContains(t, err, "worker.admin: 0.0.0.0:0 is reachable from other machines")
}
