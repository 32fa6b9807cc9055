package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

func TestMCPTaskLifecycle(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "")
	url, _ := command(t, "--config", x.config)
	c := taskClient{url: url}.ready(t, "ask")

	caps := c.do(t, "server/discover", `{}`).Get("result.capabilities")
	require.Equal(t, `{}`, caps.Get(`extensions.io\.modelcontextprotocol/tasks`).Raw, caps.Raw)
	require.False(t, caps.Get("tasks").Exists())

	before := time.Now().Add(-time.Second)
	h := c.call(t, "slow", `{"n":1}`)
	require.Equal(t, "task", h.Get("resultType").Str, h.Raw)
	for _, field := range []string{"task", "result", "error", "inputRequests", "requestState", "content", "ttl", "pollInterval"} {
		require.False(t, h.Get(field).Exists(), "%s: %s", field, h.Raw)
	}
	created, err := time.Parse(time.RFC3339, h.Get("createdAt").Str)
	require.NoError(t, err)
	require.True(t, created.After(before) && created.Before(time.Now().Add(time.Second)))
	_, err = time.Parse(time.RFC3339, h.Get("lastUpdatedAt").Str)
	require.NoError(t, err)
	require.Equal(t, (24 * time.Hour).Milliseconds(), h.Get("ttlMs").Int(), "that of the result record")
	require.Positive(t, h.Get("pollIntervalMs").Int())
	id := h.Get("taskId").Str
	require.GreaterOrEqual(t, len(id), 26, "130 random bits")

	require.Equal(t, `{"n":1}`, x.began(t))
	until, err := time.Parse(time.RFC3339, receive(t, x.until))
	require.NoError(t, err)
	require.Greater(t, time.Until(until), 2*time.Minute, "a task has its tool's time, not that of a call that is waited for")
	require.Equal(t, "working", c.get(t, id).Get("status").Str)
	require.False(t, c.get(t, id).Get("result").Exists())
	x.end(t, `{"big":9007199254740993,"z":"<a>"}`)
	r := c.until(t, id, "completed")
	require.Equal(t, `{"big":9007199254740993,"z":"<a>"}`, r.Get("result.content.0.text").Str)
	require.Equal(t, "9007199254740993", r.Get("result.structuredContent.big").Raw, "integers stay exact")
	require.Equal(t, "complete", r.Get("result.resultType").Str)
	require.False(t, r.Get(`result._meta.io\.modelcontextprotocol/related-task`).Exists())
	require.Equal(t, r.Raw, c.get(t, id).Raw, "an end does not change")
	require.InDelta(t, (24 * time.Hour).Seconds(), float64(r.Get("ttlMs").Int())/1000, 60)
	c.ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	c.ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":{"x":{}}}`)
	require.Equal(t, "completed", c.get(t, id).Get("status").Str, "a task that has ended stays as it is")

	t.Run("a failed tool is completed with isError", func(t *testing.T) {
		r := c.until(t, c.task(t, "broken", `{}`), "completed")
		require.True(t, r.Get("result.isError").Bool(), r.Raw)
		require.NotEmpty(t, r.Get("result.content.0.text").Str)
	})
	t.Run("an end before the first look", func(t *testing.T) {
		require.Equal(t, "9007199254740993", c.until(t, c.task(t, "at_once", `{}`), "completed").Get("result.structuredContent.n").Raw)
	})
	t.Run("who does not declare it", func(t *testing.T) {
		without := taskClient{url: url, without: true}
		for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
			a := without.do(t, method, `{"taskId":"`+id+`","inputResponses":{}}`)
			require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
			require.Equal(t, 400, a.status)
			require.True(t, a.Get(`error.data.requiredCapabilities.extensions.io\.modelcontextprotocol/tasks`).IsObject(), a.Raw)
		}
		a := without.do(t, "tools/call", `{"name":"must","arguments":{}}`)
		require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
		require.Equal(t, "complete", without.call(t, "at_once", `{}`).Get("resultType").Str)
		without.caps = `"tasks":{},`
		require.Equal(t, "complete", without.call(t, "at_once", `{}`).Get("resultType").Str, "the capability of 2025-11-25 is another one")
	})
	t.Run("an idempotency key is one call, with a handle for each time", func(t *testing.T) {
		again := func() string {
			a := c.do(t, "tools/call", `{"name":"slow","arguments":{"k":1}}`, "Idempotency-Key: once")
			require.Equal(t, "task", a.Get("result.resultType").Str, a.Raw)
			return a.Get("result.taskId").Str
		}
		one, two := again(), again()
		require.NotEqual(t, one, two)
		require.Equal(t, `{"k":1}`, x.began(t))
		x.end(t, `{"ok":1}`)
		r := c.until(t, one, "completed")
		require.Equal(t, r.Get("result").Raw, c.until(t, two, "completed").Get("result").Raw)
		require.Equal(t, r.Get("result").Raw, c.until(t, again(), "completed").Get("result").Raw)
		require.Empty(t, x.begun)
	})
	t.Run("a policy decides", func(t *testing.T) {
		id := c.task(t, "must", `{}`)
		x.began(t)
		x.end(t, `{}`)
		c.until(t, id, "completed")
		require.Eventually(t, func() bool { // a busy machine may be slow
			return c.call(t, "quick", `{}`).Get("resultType").Str == "complete"
		}, 30*time.Second, time.Millisecond, "it ended soon")
		go func() { <-x.begun; x.release <- `{"late":1}` }()
		require.Equal(t, `{"late":1}`, c.call(t, "never", `{}`).Get("structuredContent").Raw)
		id = c.task(t, "lazy", `{"n":2}`)
		require.Equal(t, `{"n":2}`, x.began(t), "it took long")
		x.end(t, `{"ok":true}`)
		require.True(t, c.until(t, id, "completed").Get("result.structuredContent.ok").Bool())
		a := c.do(t, "tools/call", `{"name":"quick","arguments":{},"task":{"ttl":60000}}`)
		require.Equal(t, "complete", a.Get("result.resultType").Str, "the parameter of 2025-11-25 says nothing here")
	})
	t.Run("refusals", func(t *testing.T) {
		for name, row := range map[string]struct {
			method, params string
			headers        []string
			status         int
			code           int64
			says           string
		}{
			"unknown":              {"tasks/get", `{"taskId":"nix"}`, nil, 400, -32602, "no task"},
			"unknown to cancel":    {"tasks/cancel", `{"taskId":"nix"}`, nil, 400, -32602, "no task"},
			"unknown to update":    {"tasks/update", `{"taskId":"nix","inputResponses":{}}`, nil, 400, -32602, "no task"},
			"strange":              {"tasks/get", `{"taskId":"*.> ` + strings.Repeat("x", 300) + `"}`, []string{"Mcp-Name: *.> " + strings.Repeat("x", 300)}, 400, -32602, "no task"},
			"number":               {"tasks/get", `{"taskId":7}`, []string{"Mcp-Name: 7"}, 400, -32602, "taskId"},
			"none":                 {"tasks/get", `{}`, []string{"Mcp-Name: 7"}, 400, -32602, "taskId"},
			"no Mcp-Name":          {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Name: "}, 400, -32020, "Mcp-Name"},
			"another Mcp-Name":     {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Name: x"}, 400, -32020, "Mcp-Name"},
			"another Mcp-Method":   {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Method: tasks/cancel"}, 400, -32020, "Mcp-Method"},
			"no responses":         {"tasks/update", `{"taskId":"` + id + `"}`, nil, 400, -32602, "inputResponses"},
			"a response no answer": {"tasks/update", `{"taskId":"` + id + `","inputResponses":{"a":1}}`, nil, 400, -32602, "inputResponses"},
			"tasks/list":           {"tasks/list", `{}`, nil, 404, -32601, "tasks/list"},
			"tasks/result":         {"tasks/result", `{"taskId":"` + id + `"}`, nil, 404, -32601, "tasks/result"},
		} {
			a := c.do(t, row.method, row.params, row.headers...)
			require.Equal(t, row.status, a.status, "%s: %s", name, a.Raw)
			require.Equal(t, row.code, a.Get("error.code").Int(), "%s: %s", name, a.Raw)
			require.Contains(t, a.Get("error.message").Str, row.says, name)
		}
		a := taskClient{url: url, without: true}.do(t, "subscriptions/listen", `{"notifications":{"taskIds":["`+id+`"]}}`)
		require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
	})
	t.Run("older revisions know nothing of it", func(t *testing.T) {
		s := mcpClient(t, url, "", "2025-11-25", &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{Extensions: map[string]any{tasksExtension: map[string]any{}}}})
		require.Empty(t, s.InitializeResult().Capabilities.Extensions)
		go func() { <-x.begun; x.release <- `{"sync":1}` }()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "must"})
		require.NoError(t, err)
		require.Equal(t, `{"sync":1}`, textOf(t, r))
		a := taskClient{url: url, session: s.ID()}.do(t, "tasks/get", `{"taskId":"`+id+`"}`)
		require.EqualValues(t, -32601, a.Get("error.code").Int(), a.Raw)
	})
}

func TestMCPTaskCancel(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "")
	url, _ := command(t, "--config", x.config)
	c := taskClient{url: url}.ready(t, "slow")
	id := c.task(t, "slow", `{}`)
	x.began(t)
	c.ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	receive(t, x.stopped)
	r := c.until(t, id, "cancelled")
	require.False(t, r.Get("result").Exists() || r.Get("error").Exists(), r.Raw)
	c.ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	require.Equal(t, r.Raw, c.get(t, id).Raw)

	// A caller who goes before he has a handle leaves nobody who could ask for the result.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := c.ask(ctx, "tools/call", `{"name":"lazy","arguments":{}}`); gone <- err }()
	x.began(t)
	cancel()
	require.Error(t, receive(t, gone))
	receive(t, x.stopped)

	// One who has his handle may go.
	ctx, cancel = context.WithCancel(t.Context())
	a, err := c.ask(ctx, "tools/call", `{"name":"lazy","arguments":{}}`)
	require.NoError(t, err)
	cancel()
	x.began(t)
	x.end(t, `{"ok":true}`)
	require.True(t, c.until(t, a.Get("result.taskId").Str, "completed").Get("result.structuredContent.ok").Bool())
	require.Empty(t, x.stopped)
}

// A task is its key's: of the same tenant another key, and of another tenant everybody, is told that there is none.
func TestMCPTaskOfAnother(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	x := newTaskTools(t, fmt.Sprintf("http: {keys-file: %q}\n", keys))
	record := func(id, tenant, more string) string {
		return fmt.Sprintf("  - {id: %s, hash: %q, tenant: %s%s}\n", id, hashKey("key-"+id, nil), tenant, more)
	}
	require.NoError(t, os.WriteFile(keys, []byte("keys:\n"+record("a", "ta", "")+record("a2", "ta", "")+record("b", "tb", "")+record("op", "ops", ", role: operator")), 0o600))
	url, _ := command(t, "--config", x.config)
	a := taskClient{url: url, key: "key-a", caps: withForms}.ready(t, "ask")
	id := a.task(t, "slow", `{}`)
	x.began(t)
	asks := a.task(t, "ask", `{}`)
	a.until(t, asks, "input_required")
	for _, key := range []string{"key-a2", "key-b", "key-op"} {
		other := taskClient{url: url, key: key, caps: withForms}
		for _, task := range []string{id, asks} {
			for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
				params := `{"taskId":"` + task + `","inputResponses":{"1.a":{"action":"accept"},"1.b":{"action":"accept"}}}`
				r := other.do(t, method, params)
				require.EqualValues(t, -32602, r.Get("error.code").Int(), "%s %s: %s", key, method, r.Raw)
				none := other.do(t, method, strings.ReplaceAll(params, task, "NONE"))
				require.Equal(t, strings.ReplaceAll(r.Raw, task, "NONE"), none.Raw, "as one that there is not")
			}
		}
	}
	x.end(t, `{"ok":true}`)
	require.True(t, a.until(t, id, "completed").Get("result.structuredContent.ok").Bool())
	require.Len(t, a.get(t, asks).Get("inputRequests").Map(), 2, "nobody answered for him")
}

func TestMCPTaskInput(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "")
	url, natsURL := command(t, "--config", x.config)
	c := taskClient{url: url, caps: withForms}.ready(t, "ask")
	say := func(id, answers string) {
		t.Helper()
		c.ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":`+answers+`}`)
	}
	id := c.task(t, "ask", `{"file":"f"}`)
	require.Equal(t, `{}`, strings.ReplaceAll(receive(t, x.asked), "null", "{}"))
	r := c.until(t, id, "input_required")
	require.Equal(t, "elicitation/create", r.Get(`inputRequests.1\.a.method`).Str, r.Raw)
	require.Equal(t, "b?", r.Get(`inputRequests.1\.b.params.message`).Str, r.Raw)
	say(id, `{"nobody":{"x":1}}`)
	say(id, `{"1.b":{"action":"accept","content":{"v":"B"}}}`)
	r = c.get(t, id)
	require.Equal(t, "input_required", r.Get("status").Str)
	require.Equal(t, []bool{true, false}, []bool{r.Get(`inputRequests.1\.a`).Exists(), r.Get(`inputRequests.1\.b`).Exists()}, r.Raw)
	say(id, `{"1.b":{"action":"accept","content":{"v":"changed"}},"2.a":{"action":"accept"}}`)
	require.Equal(t, "input_required", c.get(t, id).Get("status").Str, "what is answered, or not asked yet, is left out")
	say(id, `{"1.a":{"action":"decline"}}`)
	told := receive(t, x.asked)
	require.True(t, strings.HasSuffix(told, "one"), told)
	require.Equal(t, []string{"decline", "accept", "B"}, []string{gjson.Get(told, "a.action").Str, gjson.Get(told, "b.action").Str, gjson.Get(told, "b.content.v").Str}, told)
	r = c.until(t, id, "input_required")
	require.Equal(t, "really?", r.Get(`inputRequests.2\.a.params.message`).Str, "the tool asks a by the same name again; the task has another for it: %s", r.Raw)

	// The gateway that took the last answer dies before it calls the tool again: any other goes on with it.
	nc, err := nats.Connect(natsURL)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "shallot_results")
	require.NoError(t, err)
	e, err := kv.Get(t.Context(), taskKey("default", id))
	require.NoError(t, err)
	stored := rawjson.SetField(e.Value(), "answers", []byte(`{"2.a":{"action":"accept","content":{"v":"yes"}}}`))
	_, err = kv.Update(t.Context(), taskKey("default", id), stored, e.Revision())
	require.NoError(t, err)
	r = c.until(t, id, "completed")
	require.Equal(t, `done {"file":"f"}`, r.Get("result.content.0.text").Str, r.Raw)
	require.Equal(t, "yes", gjson.Get(receive(t, x.asked), "a.content.v").Str)
	require.Empty(t, x.asked, "each round is one call")

	t.Run("cancelled while it waits", func(t *testing.T) {
		id := c.task(t, "ask", `{}`)
		c.until(t, id, "input_required")
		c.ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
		require.Equal(t, "cancelled", c.get(t, id).Get("status").Str)
		say(id, `{"1.a":{"action":"accept"},"1.b":{"action":"accept"}}`)
		require.Equal(t, "cancelled", c.get(t, id).Get("status").Str)
		receive(t, x.asked)
		require.Empty(t, x.asked)
	})
	t.Run("many answers at once are one call", func(t *testing.T) {
		id := c.task(t, "ask", `{}`)
		receive(t, x.asked)
		c.until(t, id, "input_required")
		done := make(chan error, 16)
		for i := range 16 {
			go func() {
				name := []string{"1.a", "1.b"}[i%2]
				_, err := c.ask(t.Context(), "tasks/update", `{"taskId":"`+id+`","inputResponses":{"`+name+`":{"action":"accept","content":{"v":"v"}}}}`)
				done <- err
			}()
		}
		for range 16 {
			require.NoError(t, receive(t, done))
		}
		r := c.until(t, id, "input_required")
		require.True(t, r.Get(`inputRequests.2\.a`).Exists(), r.Raw)
		receive(t, x.asked)
		require.Empty(t, x.asked)
	})
}
