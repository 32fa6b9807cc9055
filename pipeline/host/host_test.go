package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// start runs everything in this process on an embedded server of its own.
func start(t *testing.T, config string, log *slog.Logger, list ...pipeline.Stage) (*host.Host, error) {
	t.Helper()
	dir := t.TempDir()
	file := ""
	if config != "" {
		file = filepath.Join(dir, "shallot.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	}
	l, err := host.Load(file, nil, map[string]string{
		"nats.embedded.port": "-1", "nats.embedded.data": filepath.Join(dir, "data"), "nats.embedded.sync": "1m",
	})
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{
		Config: l, Roles: host.Everything(), Name: t.Name(), Log: log, Stages: list, Drain: time.Second,
		Getenv: func(string) string { return "" },
	})
	if err == nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = h.Stop(ctx)
		})
	}
	return h, err
}

func started(t *testing.T, config string, list ...pipeline.Stage) *host.Host {
	t.Helper()
	h, err := start(t, config, nil, list...)
	require.NoError(t, err)
	return h
}

func end(t *testing.T, h *host.Host, r pipeline.Request) *messages.Call {
	t.Helper()
	p, err := h.Entry().Accept(t.Context(), r)
	require.NoError(t, err)
	c, err := p.Wait(t.Context(), nil)
	require.NoError(t, err)
	return c
}

func pass(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }

const hello = `{"model":"demo/tools","messages":[{"role":"user","content":"hello"}]}`

func TestStageTools(t *testing.T) {
	t.Parallel()
	notes := pipeline.Stage{
		Name: "notebook", Kind: messages.Model, Order: 40, Before: pass,
		Tools: []pipeline.Tool{{
			Name: "write_note", Description: "Writes a note.",
			Parameters: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`),
			Do: func(_ context.Context, c *messages.Call, args json.RawMessage) ([]byte, error) {
				return rawjson.Encode(map[string]any{"run": c.Run, "tenant": c.Tenant, "args": args}), nil
			},
		}},
	}
	h := started(t, "", notes)

	t.Run("S1-IF-3 an agent run's model call gets the tool and the tool call is served", func(t *testing.T) {
		t.Parallel()
		c := end(t, h, pipeline.Request{Kind: messages.Model, Tenant: "acme", Run: "r1", Body: []byte(hello)})
		require.Nil(t, c.Fault)
		calls := chat.Choices(c.Reply())[0].Message().ToolCalls()
		require.Len(t, calls, 1)
		require.Equal(t, "write_note", calls[0].Name())
		c = end(t, h, pipeline.Request{Kind: messages.Tool, Tenant: "acme", Run: "r1", Tool: "write_note",
			Body: []byte(`{"text":"x"}`)})
		require.Nil(t, c.Fault)
		require.JSONEq(t, `{"run":"r1","tenant":"acme","args":{"text":"x"}}`, string(c.Reply()))
		require.Contains(t, c.Slip.Path, "tool-arguments.beforeTool", "it passes the tool chain")
	})
	t.Run("S1-IF-3 its arguments are read against its schema", func(t *testing.T) {
		t.Parallel()
		c := end(t, h, pipeline.Request{Kind: messages.Tool, Run: "r1", Tool: "write_note", Body: []byte(`{}`)})
		require.Nil(t, c.Fault)
		require.Contains(t, string(c.Reply()), `"error":"invalid_arguments"`, "F3-9: the graceful error says so")
	})
	t.Run("S1-IF-3 a bare call gets no tools that its caller did not send", func(t *testing.T) {
		t.Parallel()
		c := end(t, h, pipeline.Request{Kind: messages.Model, Body: []byte(hello)})
		require.Nil(t, c.Fault)
		require.Empty(t, chat.Choices(c.Reply())[0].Message().ToolCalls())
		for _, name := range []string{"write_note", "write_note@1", "write_note@7"} {
			_, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: name,
				Body: []byte(`{"text":"x"}`)})
			var f *messages.Fault
			require.ErrorAs(t, err, &f, name)
			require.Equal(t, messages.ToolNotFound, f.Code, name)
		}
	})
	t.Run("S1-IF-3 the request's own tool of that name stays the caller's", func(t *testing.T) {
		t.Parallel()
		own := `{"model":"demo/tools","messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function",` +
			`"function":{"name":"write_note","x":1}}]}`
		c := end(t, h, pipeline.Request{Kind: messages.Model, Run: "r2", Body: []byte(own)})
		require.Nil(t, c.Fault)
		require.NotContains(t, c.Notes, messages.NoteStageTools)
	})
	t.Run("S1-IF-3 an ordinary tool is served as before", func(t *testing.T) {
		t.Parallel()
		c := end(t, h, pipeline.Request{Kind: messages.Tool, Tool: "add", Body: []byte(`{"a":"1","b":2}`)})
		require.Nil(t, c.Fault)
		require.JSONEq(t, `{"sum":3}`, string(c.Reply()))
	})
}

func TestAddedToolThatNobodyExecutes(t *testing.T) {
	t.Parallel()
	add := func(name string) pipeline.Func {
		return func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetRequest(rawjson.SetField(c.Request(), "tools", []byte(`[{"type":"function","function":{"name":"`+name+`"}}]`)))
			return pipeline.Continue(), nil
		}
	}
	h := started(t, "",
		pipeline.Stage{Name: "fine", Kind: messages.Model, Order: 40, Before: add("add"), Writes: []string{"request.tools"},
			ApplyTo: []string{pipeline.ApplySession}},
		pipeline.Stage{Name: "ghost", Kind: messages.Model, Order: 41, Before: add("ghost"),
			Writes: []string{"request.tools"}, ApplyTo: []string{pipeline.ApplyBare}},
		pipeline.Stage{Name: "promise", Kind: messages.Model, Order: 42, Before: pass,
			Tools: []pipeline.Tool{{Name: "nobody"}}, ApplyTo: []string{pipeline.ApplyAgent}},
	)
	c := end(t, h, pipeline.Request{Kind: messages.Model, Body: []byte(hello)})
	require.NotNil(t, c.Fault, "CH-22")
	require.Equal(t, messages.Misconfigured, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "ghost")
	require.NotContains(t, c.Slip.Path, "model", "CH-22 before the model is called")
	require.Nil(t, end(t, h, pipeline.Request{Kind: messages.Model, Session: "s", Body: []byte(hello)}).Fault)
	_, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Model, Run: "r", Body: []byte(hello)})
	var f *messages.Fault
	require.ErrorAs(t, err, &f, "CH-22")
	require.Equal(t, messages.Misconfigured, f.Code)
}

func TestRouteCheckAtStart(t *testing.T) {
	t.Parallel()
	evict := pipeline.Stage{Name: "evict", Kind: messages.Tool, Order: 12, After: pass, Role: pipeline.RoleEvict}
	cache := pipeline.Stage{Name: "store", Kind: messages.Tool, Order: 13, Before: pass, Role: pipeline.RoleCache}
	_, err := start(t, "", nil, evict, cache)
	require.ErrorContains(t, err, "eviction-not-inner-to-cache")
	require.ErrorContains(t, err, "evict (12)")

	var log bytes.Buffer
	h, err := start(t, "agent:\n  interceptor:\n    model-retry: {enabled: true, order: 9}\n", nil)
	require.ErrorContains(t, err, "order 9")
	require.NotNil(t, h)
	h, err = start(t, "agent:\n  interceptor:\n    model-retry: {enabled: true, order: 10}\n"+
		"    model-fallback: {order: 11}\n",
		slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	require.Contains(t, log.String(), "retry-outer-to-fallback")
	v, err := h.Control().Diagnostics(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(rawjson.Encode(v)), `"rule":"retry-outer-to-fallback"`)
}

func TestTodoOverNATS(t *testing.T) {
	t.Parallel()
	h := started(t, "")
	ask := func(subject, body, session string) *nats.Msg {
		t.Helper()
		m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{}}
		if session != "" {
			m.Header.Set("Shallot-Session", session)
		}
		r, err := h.Conn.RequestMsg(m, 30*time.Second)
		require.NoError(t, err)
		return r
	}
	r := ask("shallot.v1.todo.get", "s1", "")
	require.JSONEq(t, `{"session":"s1","items":[],"revision":0}`, string(r.Data))
	r = ask("shallot.v1.todo.put", `{"session":"s1","items":[{"title":"one"},{"title":"two","status":"COMPLETED"}]}`, "")
	require.Empty(t, r.Header.Get("Nats-Service-Error-Code"), string(r.Data))
	var list host.Todo
	require.NoError(t, json.Unmarshal(ask("shallot.v1.todo.get", "", "s1").Data, &list))
	require.Len(t, list.Items, 2)
	require.Equal(t, "one", list.Items[0].Title)

	c := end(t, h, pipeline.Request{Kind: messages.Model, Session: "s1",
		Body: []byte(`{"model":"demo/echo","messages":[{"role":"user","content":"[TODO_UPDATE: id=1, ` +
			`status=IN_PROGRESS]"}]}`)})
	require.Nil(t, c.Fault)
	require.NoError(t, json.Unmarshal(ask("shallot.v1.todo.get", `{"session":"s1"}`, "").Data, &list))
	require.EqualValues(t, "IN_PROGRESS", list.Items[0].Status, "the stage and the subject have one list")

	require.NoError(t, json.Unmarshal(ask("shallot.v1.tenant.acme.todo.get", "s1", "").Data, &list))
	require.Empty(t, list.Items, "X-22 another tenant's session of that name is another list")
	for name, bad := range map[string][3]string{
		"no session":     {"shallot.v1.todo.get", "", "400"},
		"unknown key":    {"shallot.v1.todo.put", `{"session":"s1","itmes":[]}`, "400"},
		"bad status":     {"shallot.v1.todo.put", `{"session":"s1","items":[{"title":"x","status":"DONE"}]}`, "400"},
		"unknown item":   {"shallot.v1.todo.put", `{"session":"s1","items":[{"id":99,"status":"PENDING"}]}`, "404"},
		"other revision": {"shallot.v1.todo.put", `{"session":"s1","items":[],"revision":77}`, "409"},
		"no JSON":        {"shallot.v1.todo.put", `nonsense`, "400"},
	} {
		require.Equal(t, bad[2], ask(bad[0], bad[1], "").Header.Get("Nats-Service-Error-Code"), name)
	}
}
