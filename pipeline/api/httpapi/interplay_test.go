package httpapi

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
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// A caller that asks for a stream of a call that waits gets an ordinary 202; where a stage holds a result of which they
// have read a part, the stream ends with an error that says where the result will be.
func TestStreamOfACallThatWaits(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools+`    - {name: checked, executor: "`+piecesURL(t)+
		`", effect: read, cache: "off", stages: {mandatory: [check]}}
stages:
  - {name: check, kind: tool, enabled: false, phases: [after], tries: 1}
`, nil)
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
	held := g.Do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, acceptEvents)
	require.Equal(t, 202, held.StatusCode, held.Body)
	require.Equal(t, "application/json", held.Header.Get("Content-Type"))
	require.Equal(t, "approval_pending", gjson.Get(held.Body, "status").Str)
	result := func(call, want string) {
		require.Equal(t, 200, g.Do(t, "POST", "/v1/approvals/"+call, `{"decision":"approve"}`).StatusCode)
		require.Eventually(t, func() bool { return strings.TrimSpace(g.Do(t, "GET", "/v1/results/"+call, "").Body) == want },
			30*time.Second, 20*time.Millisecond)
	}
	result(held.Header.Get("Shallot-Call"), `{"text":"hi"}`)

	late := g.Do(t, "POST", "/v1/tools/checked/call", `{}`, acceptEvents)
	require.Equal(t, 200, late.StatusCode, late.Body)
	id := late.Header.Get("Shallot-Call")
	require.Contains(t, late.Body, `"text":"one`)
	require.NotContains(t, late.Body, "event: result")
	require.Contains(t, late.Body, "event: error")
	require.Contains(t, late.Body, "the call waits for a person's decision; its answer will be at /v1/results/"+id)
	require.NotContains(t, late.Body, "the gateway lost")
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
	h := apitest.Host(t, apitest.WaitingTools, nil)
	g := withApprovals(t, h, func(_ *Config, p *Deps) {
		p.Keys = keysOf(t,
			fmt.Sprintf("keys:\n  - {id: a, hash: %q, tools: [shout, add]}\n  - {id: b, hash: %q, tools: [add]}\n"+
				"  - {id: op, hash: %q, role: operator}\n  - {id: op2, hash: %q, role: operator, tools: [add]}\n",
				HashKey("key-a", nil), HashKey("key-b", nil), HashKey("key-op", nil), HashKey("key-op2", nil)))
	})
	authOp2 := "Authorization: Bearer key-op2"
	g.Do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, apitest.AuthB, acceptEvents).IsFault(t, messages.Forbidden)
	held := g.Do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, apitest.AuthA, acceptEvents)
	require.Equal(t, 202, held.StatusCode)
	at := "/v1/approvals/" + held.Header.Get("Shallot-Call")
	g.Do(t, "POST", at, `{"decision":"approve"}`, apitest.AuthA).IsFault(t, messages.Forbidden)
	require.Equal(t, "[]", gjson.Get(g.Do(t, "GET", "/v1/approvals", "", authOp2).Body, "data").Raw)
	g.Do(t, "GET", at, "", authOp2).IsFault(t, messages.NotFound)
	g.Do(t, "POST", at, `{"decision":"approve"}`, authOp2).IsFault(t, messages.NotFound)
	require.Equal(t, int64(1), gjson.Get(g.Do(t, "GET", "/v1/approvals", "", apitest.AuthOp).Body, "data.#").Int())
	require.Equal(t, 200, g.Do(t, "POST", at, `{"decision":"approve"}`, apitest.AuthOp).StatusCode)
	place := held.Header.Get("Location")
	require.Eventually(t, func() bool { return g.Do(t, "GET", place, "", apitest.AuthA).StatusCode == 200 },
		30*time.Second, 20*time.Millisecond)
	g.Do(t, "GET", place, "", apitest.AuthB).IsFault(t, messages.NotFound)
}

// tool-retry with executed-by: caller marks a failure for the caller; where its headers have gone out with the first
// sign of life, the last event has the marks. A part that was shown is not worth another attempt.
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
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/tools/weak/call",
			strings.NewReader(`{"say":"`+say+`"}`))
		require.NoError(t, err)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		if say == "" {
			require.Equal(t, []string{"true", "70"}, []string{res.Header.Get("Shallot-Should-Retry"),
				res.Header.Get("Shallot-Suggested-Delay-Ms")})
			continue
		}
		events := strings.Split(strings.TrimSpace(string(raw)), "\n\n")
		_, data, _ := strings.Cut(events[len(events)-1], "data: ")
		require.Equal(t, marked, gjson.Get(data, "should_retry").Bool(), "%s: %s", say, data)
		require.Equal(t, marked, gjson.Get(data, "suggested_delay_ms").Int() == 70, "%s: %s", say, data)
	}
}
