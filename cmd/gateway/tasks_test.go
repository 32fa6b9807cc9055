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

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
)

func TestMCPTaskLifecycle(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "")
	url, _ := command(t, "--config", x.Config)
	c := apitest.TaskClient{URL: url}.Ready(t, "ask")

	caps := c.Do(t, "server/discover", `{}`).Get("result.capabilities")
	require.Equal(t, `{}`, caps.Get(`extensions.io\.modelcontextprotocol/tasks`).Raw, caps.Raw)
	require.False(t, caps.Get("tasks").Exists())

	before := time.Now().Add(-time.Second)
	h := c.Call(t, "slow", `{"n":1}`)
	require.Equal(t, "task", h.Get("resultType").Str, h.Raw)
	for _, field := range []string{"task", "result", "error", "inputRequests", "requestState", "content", "ttl",
		"pollInterval"} {
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

	require.Equal(t, `{"n":1}`, x.Began(t))
	until, err := time.Parse(time.RFC3339, apitest.Receive(t, x.Until))
	require.NoError(t, err)
	require.Greater(t, time.Until(until), 2*time.Minute, "a task has its tool's time, not that of a call that "+
		"is waited for")
	require.Equal(t, "working", c.Get(t, id).Get("status").Str)
	require.False(t, c.Get(t, id).Get("result").Exists())
	x.End(t, `{"big":9007199254740993,"z":"<a>"}`)
	r := c.Until(t, id, "completed")
	require.Equal(t, `{"big":9007199254740993,"z":"<a>"}`, r.Get("result.content.0.text").Str)
	require.Equal(t, "9007199254740993", r.Get("result.structuredContent.big").Raw, "integers stay exact")
	require.Equal(t, "complete", r.Get("result.resultType").Str)
	require.False(t, r.Get(`result._meta.io\.modelcontextprotocol/related-task`).Exists())
	require.Equal(t, r.Raw, c.Get(t, id).Raw, "an end does not change")
	require.InDelta(t, (24 * time.Hour).Seconds(), float64(r.Get("ttlMs").Int())/1000, 60)
	c.Ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	c.Ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":{"x":{}}}`)
	require.Equal(t, "completed", c.Get(t, id).Get("status").Str, "a task that has ended stays as it is")

	t.Run("a failed tool is completed with isError", func(t *testing.T) {
		r := c.Until(t, c.Task(t, "broken", `{}`), "completed")
		require.True(t, r.Get("result.isError").Bool(), r.Raw)
		require.NotEmpty(t, r.Get("result.content.0.text").Str)
	})
	t.Run("an end before the first look", func(t *testing.T) {
		require.Equal(t, "9007199254740993", c.Until(t, c.Task(t, "at_once", `{}`),
			"completed").Get("result.structuredContent.n").Raw)
	})
	t.Run("who does not declare it", func(t *testing.T) {
		without := apitest.TaskClient{URL: url, Without: true}
		for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
			a := without.Do(t, method, `{"taskId":"`+id+`","inputResponses":{}}`)
			require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
			require.Equal(t, 400, a.Status)
			required := a.Get(`error.data.requiredCapabilities.extensions.io\.modelcontextprotocol/tasks`)
			require.True(t, required.IsObject(), a.Raw)
		}
		a := without.Do(t, "tools/call", `{"name":"must","arguments":{}}`)
		require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
		require.Equal(t, "complete", without.Call(t, "at_once", `{}`).Get("resultType").Str)
		without.Caps = `"tasks":{},`
		require.Equal(t, "complete", without.Call(t, "at_once", `{}`).Get("resultType").Str,
			"the capability of 2025-11-25 is another one")
	})
	t.Run("an idempotency key is one call, with a handle for each time", func(t *testing.T) {
		again := func() string {
			a := c.Do(t, "tools/call", `{"name":"slow","arguments":{"k":1}}`, "Idempotency-Key: once")
			require.Equal(t, "task", a.Get("result.resultType").Str, a.Raw)
			return a.Get("result.taskId").Str
		}
		one, two := again(), again()
		require.NotEqual(t, one, two)
		require.Equal(t, `{"k":1}`, x.Began(t))
		x.End(t, `{"ok":1}`)
		r := c.Until(t, one, "completed")
		require.Equal(t, r.Get("result").Raw, c.Until(t, two, "completed").Get("result").Raw)
		require.Equal(t, r.Get("result").Raw, c.Until(t, again(), "completed").Get("result").Raw)
		require.Empty(t, x.Begun)
	})
	t.Run("a policy decides", func(t *testing.T) {
		id := c.Task(t, "must", `{}`)
		x.Began(t)
		x.End(t, `{}`)
		c.Until(t, id, "completed")
		soon := func(params, what string) { // a busy machine may be slow
			require.Eventually(t, func() bool {
				return c.Do(t, "tools/call", params).Get("result.resultType").Str == "complete"
			}, 30*time.Second, time.Millisecond, what)
		}
		soon(`{"name":"quick","arguments":{}}`, "it ended soon")
		go func() { <-x.Begun; x.Release <- `{"late":1}` }()
		require.Equal(t, `{"late":1}`, c.Call(t, "never", `{}`).Get("structuredContent").Raw)
		id = c.Task(t, "lazy", `{"n":2}`)
		require.Equal(t, `{"n":2}`, x.Began(t), "it took long")
		x.End(t, `{"ok":true}`)
		require.True(t, c.Until(t, id, "completed").Get("result.structuredContent.ok").Bool())
		soon(`{"name":"quick","arguments":{},"task":{"ttl":60000}}`, "the parameter of 2025-11-25 says nothing here")
	})
	t.Run("refusals", func(t *testing.T) {
		for name, row := range map[string]struct {
			method, params string
			headers        []string
			status         int
			code           int64
			says           string
		}{
			"unknown":           {"tasks/get", `{"taskId":"nix"}`, nil, 400, -32602, "no task"},
			"unknown to cancel": {"tasks/cancel", `{"taskId":"nix"}`, nil, 400, -32602, "no task"},
			"unknown to update": {"tasks/update", `{"taskId":"nix","inputResponses":{}}`, nil, 400, -32602,
				"no task"},
			"strange": {"tasks/get", `{"taskId":"*.> ` + strings.Repeat("x", 300) + `"}`,
				[]string{"Mcp-Name: *.> " + strings.Repeat("x", 300)}, 400, -32602, "no task"},
			"number": {"tasks/get", `{"taskId":7}`, []string{"Mcp-Name: 7"}, 400, -32602, "taskId"},
			"none":   {"tasks/get", `{}`, []string{"Mcp-Name: 7"}, 400, -32602, "taskId"},
			"no Mcp-Name": {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Name: "}, 400, -32020,
				"Mcp-Name"},
			"another Mcp-Name": {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Name: x"}, 400, -32020,
				"Mcp-Name"},
			"another Mcp-Method": {"tasks/get", `{"taskId":"` + id + `"}`, []string{"Mcp-Method: tasks/cancel"},
				400, -32020, "Mcp-Method"},
			"no responses": {"tasks/update", `{"taskId":"` + id + `"}`, nil, 400, -32602, "inputResponses"},
			"a response no answer": {"tasks/update", `{"taskId":"` + id + `","inputResponses":{"a":1}}`, nil, 400,
				-32602, "inputResponses"},
			"tasks/list":   {"tasks/list", `{}`, nil, 404, -32601, "tasks/list"},
			"tasks/result": {"tasks/result", `{"taskId":"` + id + `"}`, nil, 404, -32601, "tasks/result"},
		} {
			a := c.Do(t, row.method, row.params, row.headers...)
			require.Equal(t, row.status, a.Status, "%s: %s", name, a.Raw)
			require.Equal(t, row.code, a.Get("error.code").Int(), "%s: %s", name, a.Raw)
			require.Contains(t, a.Get("error.message").Str, row.says, name)
		}
		a := apitest.TaskClient{URL: url, Without: true}.Do(t, "subscriptions/listen",
			`{"notifications":{"taskIds":["`+id+`"]}}`)
		require.EqualValues(t, -32021, a.Get("error.code").Int(), a.Raw)
	})
	t.Run("older revisions know nothing of it", func(t *testing.T) {
		tasks := map[string]any{mcpapi.TasksExtension: map[string]any{}}
		s := apitest.DialMCP(t, url, "", "2025-11-25",
			&mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{Extensions: tasks}})
		require.Empty(t, s.InitializeResult().Capabilities.Extensions)
		go func() { <-x.Begun; x.Release <- `{"sync":1}` }()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "must"})
		require.NoError(t, err)
		require.Equal(t, `{"sync":1}`, apitest.TextOf(t, r))
		a := apitest.TaskClient{URL: url, Session: s.ID()}.Do(t, "tasks/get", `{"taskId":"`+id+`"}`)
		require.EqualValues(t, -32601, a.Get("error.code").Int(), a.Raw)
	})
}

func TestMCPTaskCancel(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "")
	url, _ := command(t, "--config", x.Config)
	c := apitest.TaskClient{URL: url}.Ready(t, "slow")
	id := c.Task(t, "slow", `{}`)
	x.Began(t)
	c.Ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	apitest.Receive(t, x.Stopped)
	r := c.Until(t, id, "cancelled")
	require.False(t, r.Get("result").Exists() || r.Get("error").Exists(), r.Raw)
	c.Ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	require.Equal(t, r.Raw, c.Get(t, id).Raw)

	// A caller who leaves before they have a handle can never ask for the result.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := c.Ask(ctx, "tools/call", `{"name":"lazy","arguments":{}}`); gone <- err }()
	x.Began(t)
	cancel()
	require.Error(t, apitest.Receive(t, gone))
	apitest.Receive(t, x.Stopped)

	// A caller who has a handle may leave.
	ctx, cancel = context.WithCancel(t.Context())
	a, err := c.Ask(ctx, "tools/call", `{"name":"lazy","arguments":{}}`)
	require.NoError(t, err)
	cancel()
	x.Began(t)
	x.End(t, `{"ok":true}`)
	require.True(t, c.Until(t, a.Get("result.taskId").Str, "completed").Get("result.structuredContent.ok").Bool())
	require.Empty(t, x.Stopped)
}

// A task belongs to its key: another key of the tenant, and any key of another tenant, is told that it does not exist.
func TestMCPTaskOfAnother(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	x := apitest.NewTaskTools(t, fmt.Sprintf("http: {keys-file: %q}\n", keys))
	record := func(id, tenant, more string) string {
		return fmt.Sprintf("  - {id: %s, hash: %q, tenant: %s%s}\n", id, httpapi.HashKey("key-"+id, nil), tenant, more)
	}
	require.NoError(t, os.WriteFile(keys, []byte("keys:\n"+record("a", "ta", "")+record("a2", "ta", "")+
		record("b", "tb", "")+record("op", "ops", ", role: operator")), 0o600))
	url, _ := command(t, "--config", x.Config)
	a := apitest.TaskClient{URL: url, Key: "key-a", Caps: apitest.WithForms}.Ready(t, "ask")
	id := a.Task(t, "slow", `{}`)
	x.Began(t)
	asks := a.Task(t, "ask", `{}`)
	a.Until(t, asks, "input_required")
	for _, key := range []string{"key-a2", "key-b", "key-op"} {
		other := apitest.TaskClient{URL: url, Key: key, Caps: apitest.WithForms}
		for _, task := range []string{id, asks} {
			for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
				params := `{"taskId":"` + task + `","inputResponses":{"1.a":{"action":"accept"},"1.b":{` +
					`"action":"accept"}}}`
				r := other.Do(t, method, params)
				require.EqualValues(t, -32602, r.Get("error.code").Int(), "%s %s: %s", key, method, r.Raw)
				none := other.Do(t, method, strings.ReplaceAll(params, task, "NONE"))
				require.Equal(t, strings.ReplaceAll(r.Raw, task, "NONE"), none.Raw, "like a task that does not exist")
			}
		}
	}
	x.End(t, `{"ok":true}`)
	require.True(t, a.Until(t, id, "completed").Get("result.structuredContent.ok").Bool())
	require.Len(t, a.Get(t, asks).Get("inputRequests").Map(), 2, "no other caller answered for them")
}

func TestMCPTaskInput(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "")
	url, natsURL := command(t, "--config", x.Config)
	c := apitest.TaskClient{URL: url, Caps: apitest.WithForms}.Ready(t, "ask")
	say := func(id, answers string) {
		t.Helper()
		c.Ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":`+answers+`}`)
	}
	id := c.Task(t, "ask", `{"file":"f"}`)
	require.Equal(t, `{}`, strings.ReplaceAll(apitest.Receive(t, x.Asked), "null", "{}"))
	r := c.Until(t, id, "input_required")
	require.Equal(t, "elicitation/create", r.Get(`inputRequests.1\.a.method`).Str, r.Raw)
	require.Equal(t, "b?", r.Get(`inputRequests.1\.b.params.message`).Str, r.Raw)
	say(id, `{"nobody":{"x":1}}`)
	say(id, `{"1.b":{"action":"accept","content":{"v":"B"}}}`)
	r = c.Get(t, id)
	require.Equal(t, "input_required", r.Get("status").Str)
	require.Equal(t, []bool{true, false}, []bool{r.Get(`inputRequests.1\.a`).Exists(),
		r.Get(`inputRequests.1\.b`).Exists()}, r.Raw)
	say(id, `{"1.b":{"action":"accept","content":{"v":"changed"}},"2.a":{"action":"accept"}}`)
	require.Equal(t, "input_required", c.Get(t, id).Get("status").Str, "what is answered, or not asked yet, is "+
		"left out")
	say(id, `{"1.a":{"action":"decline"}}`)
	told := apitest.Receive(t, x.Asked)
	require.True(t, strings.HasSuffix(told, "one"), told)
	require.Equal(t, []string{"decline", "accept", "B"}, []string{gjson.Get(told, "a.action").Str,
		gjson.Get(told, "b.action").Str, gjson.Get(told, "b.content.v").Str}, told)
	r = c.Until(t, id, "input_required")
	require.Equal(t, "really?", r.Get(`inputRequests.2\.a.params.message`).Str, "the tool asks a by the same "+
		"name again; the task has another for it: %s", r.Raw)

	// The gateway that took the last answer dies before it calls the tool again: any other goes on with it.
	nc, err := nats.Connect(natsURL)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "shallot_results")
	require.NoError(t, err)
	e, err := kv.Get(t.Context(), messages.Key("default", "task", id))
	require.NoError(t, err)
	stored := rawjson.SetField(e.Value(), "answers", []byte(`{"2.a":{"action":"accept","content":{"v":"yes"}}}`))
	_, err = kv.Update(t.Context(), messages.Key("default", "task", id), stored, e.Revision())
	require.NoError(t, err)
	r = c.Until(t, id, "completed")
	require.Equal(t, `done {"file":"f"}`, r.Get("result.content.0.text").Str, r.Raw)
	require.Equal(t, "yes", gjson.Get(apitest.Receive(t, x.Asked), "a.content.v").Str)
	require.Empty(t, x.Asked, "each round is one call")

	t.Run("cancelled while it waits", func(t *testing.T) {
		id := c.Task(t, "ask", `{}`)
		c.Until(t, id, "input_required")
		c.Ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
		require.Equal(t, "cancelled", c.Get(t, id).Get("status").Str)
		say(id, `{"1.a":{"action":"accept"},"1.b":{"action":"accept"}}`)
		require.Equal(t, "cancelled", c.Get(t, id).Get("status").Str)
		apitest.Receive(t, x.Asked)
		require.Empty(t, x.Asked)
	})
	t.Run("many answers at once are one call", func(t *testing.T) {
		id := c.Task(t, "ask", `{}`)
		apitest.Receive(t, x.Asked)
		c.Until(t, id, "input_required")
		done := make(chan error, 16)
		for i := range 16 {
			go func() {
				name := []string{"1.a", "1.b"}[i%2]
				_, err := c.Ask(t.Context(), "tasks/update", `{"taskId":"`+id+`","inputResponses":{"`+name+
					`":{"action":"accept","content":{"v":"v"}}}}`)
				done <- err
			}()
		}
		for range 16 {
			require.NoError(t, apitest.Receive(t, done))
		}
		r := c.Until(t, id, "input_required")
		require.True(t, r.Get(`inputRequests.2\.a`).Exists(), r.Raw)
		apitest.Receive(t, x.Asked)
		require.Empty(t, x.Asked)
	})
}
