package tools_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// toolHost runs a whole installation in this process on an embedded server; yaml is added to its configuration.
func toolHost(t testing.TB, yaml string) *host.Host {
	t.Helper()
	dir := t.TempDir()
	return startRoles(t, "nats: {embedded: {port: 0, sync: 1m, data: "+dir+"}}\n"+
		// What is tested here lies below the ladder, which would make an answer of every fault.
		"agent: {interceptor: {tool-fallback: {enabled: false}, tool-retry: {enabled: false}}}\n"+yaml, host.Everything())
}

func startRoles(t testing.TB, yaml string, roles host.Roles) *host.Host {
	t.Helper()
	return apitest.Host(t, "texts: zh\n"+yaml, func(o *host.Options) {
		o.Roles, o.Drain = roles, 2*time.Second
		if os.Getenv("SHALLOT_TEST_LOG") != "" {
			o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	})
}

// call makes a tool call through the door and waits for its end.
func call(t testing.TB, h *host.Host, r pipeline.Request) *messages.Call {
	t.Helper()
	r.Kind = messages.Tool
	p, err := h.Entry().Accept(context.Background(), r)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := p.Wait(ctx, nil)
	require.NoError(t, err)
	return c
}

// ask sends a plain NATS request.
func ask(t testing.TB, nc *nats.Conn, subject, body string, headers ...string) *nats.Msg {
	t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{}}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	out, err := nc.RequestMsg(m, 30*time.Second)
	require.NoError(t, err)
	return out
}
