//go:build unix

package process

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/stages"
)

// provider is an OpenAI-compatible upstream that refuses what the real one refuses: tool calls without their results
// right behind them, results without their call, messages without content. It is written apart from the code under
// test.
type provider struct {
	mu       sync.Mutex
	refused  []string
	seen     []int // messages of each accepted conversation call
	bytes    []int
	summarys int
}

type upMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCallID *string         `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type upRequest struct {
	Model    string      `json:"model"`
	Messages []upMessage `json:"messages"`
	N        int         `json:"n"`
	Stream   bool        `json:"stream"`
}

// check returns what the real upstream says of a request, or nothing.
func (r upRequest) check() string {
	if len(r.Messages) == 0 {
		return "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
	}
	open := map[string]bool{}
	for i, m := range r.Messages {
		if m.Role != "tool" && len(open) > 0 {
			return fmt.Sprintf("An assistant message with 'tool_calls' must be followed by tool messages responding to "+
				"each 'tool_call_id'. messages[%d]: %v", i, open)
		}
		content := string(m.Content)
		switch m.Role {
		case "tool":
			if m.ToolCallID == nil || !open[*m.ToolCallID] {
				return fmt.Sprintf("Invalid parameter: messages with role 'tool' must be a response to a preceding message "+
					"with 'tool_calls'. messages[%d]", i)
			}
			delete(open, *m.ToolCallID)
		case "assistant":
			if len(m.ToolCalls) == 0 && (content == "" || content == "null") {
				return fmt.Sprintf("Invalid value for 'content': expected a string, got null. messages[%d]", i)
			}
			for _, c := range m.ToolCalls {
				if c.ID == "" || open[c.ID] || c.Type != "function" || c.Function.Name == "" ||
					!json.Valid([]byte(c.Function.Arguments)) {
					return fmt.Sprintf("Invalid tool call in messages[%d]", i)
				}
				open[c.ID] = true
			}
			continue
		case "system", "developer", "user":
		default:
			return fmt.Sprintf("Invalid value: '%s'. messages[%d].role", m.Role, i)
		}
		if content == "" || content == "null" {
			return fmt.Sprintf("Invalid value for 'content': expected a string, got null. messages[%d]", i)
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("An assistant message with 'tool_calls' must be followed by tool messages responding to each "+
			"'tool_call_id': %v at the end", open)
	}
	return ""
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w,
			`{"object":"list","data":[{"id":"gpt-test","object":"model","created":1,"owned_by":"test"}]}`)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var q upRequest
	why := ""
	if err := json.Unmarshal(raw, &q); err != nil {
		why = err.Error()
	} else {
		why = q.check()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if why != "" {
		p.refused = append(p.refused, why)
		w.WriteHeader(400)
		_, _ = w.Write(rawjson.Encode(map[string]any{"error": map[string]any{"message": why, "type": "invalid_request_error",
			"param": "messages", "code": nil}}))
		return
	}
	text := "Noted: " + fmt.Sprint(len(q.Messages))
	if strings.HasPrefix(chat.SystemText(raw), "You summarise") {
		p.summarys++
		text = "They looked up many things."
	} else {
		p.seen, p.bytes = append(p.seen, len(q.Messages)), append(p.bytes, len(raw))
	}
	var choices []string
	for i := range max(q.N, 1) {
		choices = append(choices,
			fmt.Sprintf(`{"index":%d,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}`, i, text))
	}
	if !q.Stream {
		_, _ = fmt.Fprintf(w,
			`{"id":"c1","object":"chat.completion","created":1,"model":%q,"choices":[%s],"usage":{"prompt_tokens":1,`+
				`"completion_tokens":1,"total_tokens":2}}`, q.Model, strings.Join(choices, ","))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range max(q.N, 1) {
		for _, word := range strings.SplitAfter(text, " ") {
			_, _ = fmt.Fprintf(w,
				"data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,"+
					"\"choices\":[{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":%q},\"finish_reason\":null}]}\n\n",
				q.Model, i, word)
		}
		_, _ = fmt.Fprintf(w,
			"data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,"+
				"\"choices\":[{\"index\":%d,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", q.Model, i)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// conversation is a history as agents make them: plain turns, content parts, and turns with parallel tool calls in
// assistant messages that have no text, some with results out of order.
type conversation struct{ list []string }

func (v *conversation) add(format string, args ...any) {
	v.list = append(v.list, fmt.Sprintf(format, args...))
}

func (v *conversation) turn(i int) {
	filler := strings.Repeat(fmt.Sprintf("fact %d of the matter, ", i), 60)
	if i%4 == 0 {
		v.add(`{"role":"user","content":[{"type":"text","text":"question %d about this"},{"type":"image_url",`+
			`"image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}`, i)
	} else {
		v.add(`{"role":"user","content":"question %d: %s"}`, i, filler)
	}
	var calls []string
	n := i%3 + 1
	for k := range n {
		calls = append(calls,
			fmt.Sprintf(`{"id":"call_%d_%d","type":"function","function":{"name":"look_up","arguments":"{\"n\":%d}"}}`, i, k, k))
	}
	content := `"content":null,`
	if i%5 == 0 {
		content = ""
	}
	v.add(`{"role":"assistant",%s"tool_calls":[%s]}`, content, strings.Join(calls, ","))
	for k := range n {
		if i%2 == 0 {
			k = n - 1 - k
		}
		v.add(`{"role":"tool","tool_call_id":"call_%d_%d","content":%q}`, i, k, filler+filler)
	}
	v.add(`{"role":"assistant","content":"answer %d: %s"}`, i, filler)
}

func (v *conversation) body(extra string) string {
	tools := `[{"type":"function","function":{"name":"look_up","description":"looks up a fact",` +
		`"parameters":{"type":"object"}}}]`
	return fmt.Sprintf(`{"model":"gpt-test","temperature":0,"tools":%s,"messages":[{"role":"system","content":"You `+
		`are helpful."},%s]%s}`, tools, strings.Join(v.list, ","), extra)
}

const everyStage = `
agent:
  interceptor:
    call-limit: {thread-limit: 100000}
    budget: {tokens-per-day: 1000000000}
    pii: {enabled: true, rules: [{type: email, strategy: REDACT}]}
    pair-repair: {enabled: true, apply-to: [agent, session]}
    context-editing: {strategy: %s, max-tokens: 30000, clear-tool-uses: {trigger: 20000}}
    sub-agent: {agents: [{name: facts, description: knows facts, keywords: [{keyword: fact, weight: 10}]}]}
    model-cache: {enabled: true}
    model-retry: {enabled: true}
models:
  providers:
    - {name: up, base-url: %q, api-key-env: UP_KEY, models: ["gpt-*"]}
`

func TestLongConversation(t *testing.T) {
	t.Parallel()
	up := &provider{}
	server := httptest.NewServer(up)
	t.Cleanup(server.Close)
	c := newCluster(t, "UP_KEY=k")
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, everyStage, "[CLEAR_TOOL_USES, HYBRID]", server.URL+"/v1"),
		0o600))
	_, base := c.gateway("--config", file)
	var workers []*process
	var names []string
	for _, s := range stages.All() {
		if s.Kind == messages.Model {
			names = append(names, s.Name)
			workers = append(workers, c.worker("--config", file, "--stages", s.Name))
		}
	}
	workers = append(workers, c.worker("--config", file, "--serve", "model"))
	for _, w := range workers {
		w.ready(t)
	}

	var v conversation
	for i := range 55 {
		v.turn(i)
	}
	require.Greater(t, len(v.list), 200)
	require.Greater(t, len(v.body("")), 300_000)
	chat := func(body string) answer {
		t.Helper()
		return c.http("POST", base+"/v1/chat/completions", body, "Shallot-Session", "long")
	}
	good := func(body string) answer {
		t.Helper()
		a := chat(body)
		up.mu.Lock()
		defer up.mu.Unlock()
		require.Empty(t, up.refused, "the upstream refuses what it was sent")
		require.Equal(t, 200, a.status, string(a.body))
		return a
	}
	a := good(v.body(""))
	path := strings.Join(a.path(), ",")
	for _, name := range names {
		require.Contains(t, path, name+".", "every stage is on the route")
	}
	require.Contains(t, gjson.GetBytes(a.body, "choices.0.message.content").String(), "Noted")
	require.Less(t, up.seen[0], len(v.list), "the history was shortened")
	require.Positive(t, up.summarys, "and summarised, by a call of its own")

	t.Run("streamed", func(t *testing.T) {
		v.turn(60)
		lines := events(good(v.body(`,"stream":true`)).body)
		require.Equal(t, "[DONE]", lines[len(lines)-1])
		var text strings.Builder
		for _, l := range lines[:len(lines)-1] {
			require.False(t, gjson.Get(l, "error").Exists(), l)
			text.WriteString(gjson.Get(l, "choices.0.delta.content").String())
		}
		require.Regexp(t, `^Noted: \d+$`, text.String())
	})
	t.Run("n=2", func(t *testing.T) {
		a := good(v.body(`,"n":2`))
		require.Len(t, gjson.GetBytes(a.body, "choices").Array(), 2)
		lines := events(good(v.body(`,"n":2,"stream":true`)).body)
		texts := map[int64]string{}
		for _, l := range lines[:len(lines)-1] {
			for _, ch := range gjson.Get(l, "choices").Array() {
				texts[ch.Get("index").Int()] += ch.Get("delta.content").String()
			}
		}
		require.Regexp(t, `^Noted: \d+$`, texts[0])
		require.Equal(t, texts[0], texts[1])
	})
	t.Run("the conversation goes on", func(t *testing.T) {
		for i := range 6 {
			v.turn(70 + i)
			v.add(`{"role":"user","content":"and then? %d"}`, i)
			a := good(v.body(""))
			v.add(`%s`, gjson.GetBytes(a.body, "choices.0.message").Raw)
		}
	})
	t.Run("the last message has tool results", func(t *testing.T) {
		v.add(`{"role":"assistant","content":null,"tool_calls":[{"id":"x1","type":"function",` +
			`"function":{"name":"look_up","arguments":"{}"}},{"id":"x2","type":"function","function":{"name":"look_up",` +
			`"arguments":"{}"}}]}`)
		v.add(`{"role":"tool","tool_call_id":"x2","content":"two"}`)
		v.add(`{"role":"tool","tool_call_id":"x1","content":[{"type":"text","text":"one"}]}`)
		good(v.body(""))
	})
	t.Run("a broken history is mended where pair-repair applies", func(t *testing.T) {
		// It begins with a result whose call is gone, and one of the last two calls has no result.
		broken := conversation{list: append([]string(nil), v.list[2:len(v.list)-1]...)}
		var q upRequest
		require.NoError(t, json.Unmarshal([]byte(broken.body("")), &q))
		require.NotEmpty(t, q.check())
		broken.add(`{"role":"user","content":"go on"}`)
		good(broken.body(""))
	})
	t.Run("no messages", func(t *testing.T) {
		for _, body := range []string{`{"model":"gpt-test","messages":[]}`,
			`{"model":"gpt-test","messages":[],"stream":true}`} {
			a := chat(body)
			require.Equal(t, 400, a.status)
			require.Equal(t, "messages", gjson.GetBytes(a.body, "error.param").String())
			require.Contains(t, gjson.GetBytes(a.body, "error.message").String(), "at least one")
			require.Empty(t, up.refused, "refused before the upstream was asked")
		}
	})
	t.Run("without a session nothing is touched", func(t *testing.T) {
		a := c.http("POST", base+"/v1/chat/completions", v.body(""))
		require.Equal(t, 200, a.status, string(a.body))
		up.mu.Lock()
		defer up.mu.Unlock()
		require.Empty(t, up.refused)
		require.Equal(t, len(v.list)+1, up.seen[len(up.seen)-1])
	})
}
