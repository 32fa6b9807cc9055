package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// Who asks for a stream of a call that waits gets an ordinary 202; where a stage holds a result of which he has read a
// part, the stream ends with an error that says where the result will be.
func TestStreamOfACallThatWaits(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools+`    - {name: checked, executor: "`+piecesURL(t)+`", effect: read, cache: "off", stages: {mandatory: [check]}}
stages:
  - {name: check, kind: tool, enabled: false, phases: [after], tries: 1}
`)
	_, err := h.Conn.Subscribe("shallot.v1.stage.tool.check", func(m *nats.Msg) {
		if gjson.GetBytes(m.Data, `call.notes.hold\.answer`).Exists() {
			_ = m.Respond(nil)
			return
		}
		_ = m.Respond([]byte(`{"verdict":"hold","question":"is this well?"}`))
	})
	require.NoError(t, err)
	require.NoError(t, h.Conn.Flush())
	g := withApprovals(t, h, nil)
	held := g.do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, acceptEvents)
	require.Equal(t, 202, held.StatusCode, held.body)
	require.Equal(t, "application/json", held.Header.Get("Content-Type"))
	require.Equal(t, "approval_pending", gjson.Get(held.body, "status").Str)
	result := func(call, want string) {
		require.Equal(t, 200, g.do(t, "POST", "/v1/approvals/"+call, `{"decision":"approve"}`).StatusCode)
		require.Eventually(t, func() bool { return strings.TrimSpace(g.do(t, "GET", "/v1/results/"+call, "").body) == want }, 10*time.Second, 20*time.Millisecond)
	}
	result(held.Header.Get("Shallot-Call"), `{"text":"hi"}`)

	late := g.do(t, "POST", "/v1/tools/checked/call", `{}`, acceptEvents)
	require.Equal(t, 200, late.StatusCode, late.body)
	id := late.Header.Get("Shallot-Call")
	require.Contains(t, late.body, `"text":"one`)
	require.NotContains(t, late.body, "event: result")
	require.Contains(t, late.body, "event: error")
	require.Contains(t, late.body, "the call waits for a person's decision; its answer will be at /v1/results/"+id)
	require.NotContains(t, late.body, "the gateway lost")
	result(id, "one two")
}

// piecesURL is an HTTP tool that streams a text.
func piecesURL(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for _, text := range []string{"one ", "two"} {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A key for some tools sees neither the results nor the questions of others, in its tenant too, whatever its role.
func TestKeysForSomeTools(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	g := withApprovals(t, h, func(_ *settings, p *parts) {
		p.Keys = keysOf(t, fmt.Sprintf("keys:\n  - {id: a, hash: %q, tools: [shout, add]}\n  - {id: b, hash: %q, tools: [add]}\n  - {id: op, hash: %q, role: operator}\n  - {id: op2, hash: %q, role: operator, tools: [add]}\n",
			hashKey("key-a", nil), hashKey("key-b", nil), hashKey("key-op", nil), hashKey("key-op2", nil)))
	})
	authOp2 := "Authorization: Bearer key-op2"
	g.do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, authB, acceptEvents).isFault(t, messages.Forbidden)
	held := g.do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, authA, acceptEvents)
	require.Equal(t, 202, held.StatusCode)
	at := "/v1/approvals/" + held.Header.Get("Shallot-Call")
	g.do(t, "POST", at, `{"decision":"approve"}`, authA).isFault(t, messages.Forbidden)
	require.Equal(t, "[]", gjson.Get(g.do(t, "GET", "/v1/approvals", "", authOp2).body, "data").Raw)
	g.do(t, "GET", at, "", authOp2).isFault(t, messages.NotFound)
	g.do(t, "POST", at, `{"decision":"approve"}`, authOp2).isFault(t, messages.NotFound)
	require.Equal(t, int64(1), gjson.Get(g.do(t, "GET", "/v1/approvals", "", authOp).body, "data.#").Int())
	require.Equal(t, 200, g.do(t, "POST", at, `{"decision":"approve"}`, authOp).StatusCode)
	place := held.Header.Get("Location")
	require.Eventually(t, func() bool { return g.do(t, "GET", place, "", authA).StatusCode == 200 }, 10*time.Second, 20*time.Millisecond)
	g.do(t, "GET", place, "", authB).isFault(t, messages.NotFound)
}

// tool-retry with executed-by: caller marks a failure for the caller; where its headers have gone out with the first sign
// of life, the last event has the marks. A part that was shown is not worth another attempt.
func TestRetryMarksInStreams(t *testing.T) {
	t.Parallel()
	url := installation(t, `
agent: {interceptor: {tool-retry: {executed-by: caller, base-delay: 70ms, jitter: 0}, tool-fallback: {enabled: false}}}
tool: {tools: [{name: weak, executor: "go:weak", effect: read, cache: "off"}]}`, toolbox.GoFuncs{
		"weak": func(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			say := gjson.GetBytes(inv.Arguments, "say").Str
			if strings.Contains(say, "p") {
				inv.Progress([]byte(`{"progress":1}`))
			}
			if strings.Contains(say, "c") {
				inv.Chunk("some")
			}
			if strings.Contains(say, "e") {
				return toolbox.Result{Content: []byte(`"sorry"`), IsError: true}, nil
			}
			return toolbox.Result{}, errors.New("not now")
		},
	})
	for say, marked := range map[string]bool{"p": true, "pe": true, "pc": false, "": true} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/tools/weak/call", strings.NewReader(`{"say":"`+say+`"}`))
		require.NoError(t, err)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		if say == "" {
			require.Equal(t, []string{"true", "70"}, []string{res.Header.Get("Shallot-Should-Retry"), res.Header.Get("Shallot-Suggested-Delay-Ms")})
			continue
		}
		events := strings.Split(strings.TrimSpace(string(raw)), "\n\n")
		_, data, _ := strings.Cut(events[len(events)-1], "data: ")
		require.Equal(t, marked, gjson.Get(data, "should_retry").Bool(), "%s: %s", say, data)
		require.Equal(t, marked, gjson.Get(data, "suggested_delay_ms").Int() == 70, "%s: %s", say, data)
	}
}
