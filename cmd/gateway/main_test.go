package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// command runs the whole gateway with free ports until the test ends.
func command(t *testing.T, args ...string) (httpURL, natsURL string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := &apitest.Output{}
	done := make(chan error, 1)
	args = append([]string{"--http", "127.0.0.1:0", "--admin", "none", "--nats-port", "-1", "--data", t.TempDir()},
		args...)
	go func() { done <- run(ctx, args, out, io.Discard) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done, "a stop by signal is not a failure")
	})
	said := out.Await(t, nil, `(?s)(http://[0-9.:]+).*?(nats://[0-9.:]+).*ready in`)
	return said[1], said[2]
}

const hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`

func TestMainJobAnswersHTTPAndNATS(t *testing.T) {
	t.Parallel()
	httpURL, natsURL := command(t)
	r, err := http.Post(httpURL+"/v1/chat/completions", "application/json", strings.NewReader(hello))
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, 200, r.StatusCode, "%s", body)
	require.Contains(t, string(body), `"content":"hello"`)
	require.Contains(t, r.Header.Get("Shallot-Path"), "audit.beforeModel,")

	nc, err := nats.Connect(natsURL)
	require.NoError(t, err)
	defer nc.Close()
	m, err := nc.Request("shallot.v1.model.request", []byte(hello), 30*time.Second)
	require.NoError(t, err)
	require.JSONEq(t, string(body), string(m.Data), "the same request has the same answer whichever way it comes in")
	require.NotEmpty(t, m.Header.Get("Shallot-Call"))

	r, err = http.Get(httpURL + "/readyz")
	require.NoError(t, err)
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, r.Body.Close())

	r, err = http.Get(httpURL + "/api/debug/interceptor-stats")
	require.NoError(t, err)
	var stats struct {
		Interceptors []struct {
			Stage           string
			Type            string
			InvocationCount int
		}
	}
	require.NoError(t, json.NewDecoder(r.Body).Decode(&stats))
	require.NoError(t, r.Body.Close())
	for _, s := range stats.Interceptors {
		if s.Stage == "logging" && s.Type == "model" {
			require.Equal(t, 2, s.InvocationCount)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	httpURL, natsURL := command(t)
	for _, args := range [][]string{{"--url", httpURL + "/v1/chat/completions"}, {"--nats", natsURL}} {
		out := &apitest.Output{}
		require.NoError(t, run(t.Context(), append([]string{"load", "--for", "200ms", "--callers", "1,4"}, args...),
			out, io.Discard))
		require.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 3, "%s", out)
	}
	require.ErrorContains(t, run(t.Context(), []string{"load", "--for", "50ms", "--callers", "1", "--url",
		httpURL + "/v1/chat/completions", "--body", "{}"},
		io.Discard, io.Discard), "model is missing")
	require.ErrorContains(t, run(t.Context(), []string{"load", "--callers", "many"}, io.Discard, io.Discard),
		"--callers")
}

func TestTakenPortNamesTheFlag(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	for name, args := range map[string][]string{
		"--http":      {"--http", addr, "--admin", "none", "--nats-port", "-1"},
		"--admin":     {"--http", "127.0.0.1:0", "--admin", addr, "--nats-port", "-1"},
		"--nats-port": {"--http", "127.0.0.1:0", "--admin", "none", "--nats-port", port},
	} {
		err := run(t.Context(), append(args, "--data", t.TempDir()), io.Discard, io.Discard)
		require.ErrorContains(t, err, name)
	}
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":     {[]string{"serv"}, "Did you mean this?\n\tserve"},
		"public without keys": {[]string{"--http", "0.0.0.0:0", "--nats-port", "-1"}, "keys-file"},
		"missing file":        {[]string{"--config", "/nonexistent.yaml"}, "/nonexistent.yaml"},
		"no server there": {[]string{"--http", "127.0.0.1:0", "--admin", "none", "--nats", "nats://127.0.0.1:1"},
			"is nats-server running there"},
		"config verb": {[]string{"config", "explode"}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, run(t.Context(), c.args, io.Discard, io.Discard), c.want)
		})
	}
}

func TestBannerNamesOnlyWhatListens(t *testing.T) {
	t.Parallel()
	for port, want := range map[string]string{"0": "in this process only", "4222": "nats req shallot.v1"} {
		l, err := host.Load("", nil, map[string]string{"nats.embedded.port": port})
		require.NoError(t, err)
		var out strings.Builder
		banner(&out, &host.Host{Config: l.Config, Embedded: true, URL: "nats://127.0.0.1:4222"}, "127.0.0.1:8080",
			time.Second)
		require.Contains(t, out.String(), want)
		require.Equal(t, port != "0", strings.Contains(out.String(), ":4222"))
	}
}
