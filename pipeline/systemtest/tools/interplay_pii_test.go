package tools_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// With tool-pii on, no value leaves the tool for a caller, a cache entry, an evicted object, a result, the audit or
// an event: not in the pieces and signs of life of a stream, not in structured content or the native form of an MCP
// result, and not in what a failed tool says.
func TestNothingUnredactedGetsOut(t *testing.T) {
	t.Parallel()
	const value, shown = "joe@example.com", "[REDACTED_EMAIL]"
	long := strings.Repeat("write to "+value+" today. ", 8000)
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t,
		os.WriteFile(file, []byte("version: 1\ntexts: zh\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"+`
agent: {interceptor: {tool-pii: {enabled: true}}}
tool:
  tools:
    - {name: streams, executor: "go:streams", effect: read}
    - {name: beside, executor: "go:beside", effect: read}
    - {name: large, executor: "go:large", effect: read}
    - {name: native, executor: "go:native", effect: read}
    - {name: fails, executor: "go:fails", effect: read}
    - {name: cut, executor: "go:cut", effect: write}
`), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second,
		Getenv: func(string) string { return "" },
		Funcs: toolbox.GoFuncs{
			"streams": func(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
				inv.Progress([]byte(`{"progress":1,"total":2,"message":"reading joe@example.com"}`))
				inv.Progress([]byte(`{"log":{"level":"info","data":"joe@example.com"}}`))
				for i := 0; i < len(long); i += 1000 {
					inv.Chunk(long[i:min(i+1000, len(long))])
				}
				return toolbox.Result{}, nil
			},
			"beside": func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
				return toolbox.Result{Content: []byte("see beside"),
					Structured: []byte(`{"a":9007199254740993,"to":"joe@example.com"}`), Metadata: map[string]any{"from": value}}, nil
			},
			"large": func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
				return toolbox.Result{Content: []byte("see beside"), Structured: rawjson.Encode(map[string]string{"to": long})}, nil
			},
			"native": func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
				return toolbox.Result{Content: []byte(`{"sent":1}`), Structured: []byte(`{"sent":1}`),
					Metadata: map[string]any{tool.MetaNative: tool.Native{
						Result: []byte(`{"content":[{"type":"text","text":"sent to joe@example.com"}],"structuredContent":{"sent":1}}`),
						Of:     tool.NativeHash([]byte(`{"sent":1}`))}}}, nil
			},
			"fails": func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
				return toolbox.Result{}, errors.New("no such person: " + value)
			},
			"cut": func(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
				inv.Chunk("so far " + value)
				return toolbox.Result{}, errors.New("no more of " + value)
			},
		}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	var mu sync.Mutex
	var heard bytes.Buffer
	_, err = h.Conn.Subscribe("shallot.v1.event.>",
		func(m *nats.Msg) { mu.Lock(); defer mu.Unlock(); heard.Write(m.Data) })
	require.NoError(t, err)
	require.NoError(t, h.Conn.Flush())

	ends := map[string]*messages.Call{}
	for _, name := range []string{"streams", "beside", "large", "native", "fails", "cut"} {
		for i := range 2 { // the second from the cache, where there is one
			p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: name, Body: []byte(`{}`),
				Stream: true, IdempotencyKey: []string{"a", "b"}[i],
				Notes: messages.Notes{messages.NoteMCP: rawjson.Encode(tool.MCPCall{Progress: true, LogLevel: "debug"})}})
			require.NoError(t, err)
			var pieces bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			c, err := p.Wait(ctx, func(d pipeline.Delta) { pieces.Write(d.Chunk) })
			cancel()
			require.NoError(t, err)
			raw, err := c.Marshal()
			require.NoError(t, err)
			require.NotContains(t, string(raw), value, "%s %d", name, i)
			require.NotContains(t, pieces.String(), value, name)
			if name == "streams" && i == 0 {
				require.Equal(t, `{"progress":{"progress":1,"total":2}}`, pieces.String(), "how far it is, and no words")
			}
			if name != "fails" && name != "cut" {
				require.Nil(t, c.Fault)
				require.Equal(t, i == 1, c.Flag(messages.NoteCacheHit), name)
			}
			ends[name] = c
		}
	}
	require.JSONEq(t, `{"a":9007199254740993,"to":"`+shown+`"}`, string(ends["beside"].Notes[messages.NoteStructured]))
	native, ok := tool.NativeMCP(ends["native"])
	require.True(t, ok)
	require.Equal(t, `{"content":[{"type":"text","text":"sent to `+shown+`"}],"structuredContent":{"sent":1}}`,
		string(native))
	require.Contains(t, string(ends["fails"].Reply()), "graceful_error")
	for _, tool := range []string{"streams", "large"} {
		text := (&rowBus{Host: h}).whole(t, evictedPath(t, ends[tool]))
		require.Contains(t, text, shown)
		require.NotContains(t, text, value)
	}
	js, err := jetstream.New(h.Conn)
	require.NoError(t, err)
	for _, name := range []string{"KV_shallot_cache", "KV_shallot_results", "KV_shallot_retry", "KV_shallot_approvals",
		"OBJ_shallot_evicted", "SHALLOT_AUDIT", "SHALLOT_DEAD"} {
		s, err := js.Stream(t.Context(), name)
		require.NoError(t, err, name)
		for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
			if m, err := s.GetMsg(t.Context(), seq); err == nil {
				require.False(t, bytes.Contains(m.Data, []byte(value)), "%s %s", name, m.Subject)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotContains(t, heard.String(), value)
}
