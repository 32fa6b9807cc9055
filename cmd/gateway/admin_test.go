package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func testManager(t *testing.T) *pipeline.Manager {
	t.Helper()
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	m := &pipeline.Manager{}
	require.NoError(t, m.Register(pipeline.Stage{Name: "pii", Kind: messages.Model, Order: 6, Tier: pipeline.Mandatory, Before: pass}, true))
	require.NoError(t, m.Register(pipeline.Stage{Name: "logging", Alias: "LoggingModelInterceptor", Kind: messages.Model, Order: 100, Before: pass}, true))
	return m
}

func controlled(t *testing.T, addr string, edit func(*settings, *parts)) *testGateway {
	return controlledBy(t, &localEntry{}, addr, edit)
}

func controlledBy(t *testing.T, d *localEntry, addr string, edit func(*settings, *parts)) *testGateway {
	t.Helper()
	return start(t, d, func(c *settings, p *parts) {
		c.Addr = addr
		p.Control = pipeline.LocalControl{Manager: testManager(t)}
		if edit != nil {
			edit(c, p)
		}
	})
}

const api = "/api/debug/interceptor"

func TestControlSurfaces(t *testing.T) {
	t.Parallel()
	g := controlled(t, "127.0.0.1:8080", nil)
	enabled := func(name string) bool {
		got := g.do(t, "GET", api+"-stats", "")
		require.Equal(t, 200, got.StatusCode, got.body)
		return gjson.Get(got.body, `interceptors.#(stage=="`+name+`").enabled`).Bool()
	}
	post := func(path, body string) reply { return g.do(t, "POST", api+path, body) }

	stats := g.do(t, "GET", api+"-stats", "")
	for _, key := range []string{"modelInterceptors.0.name", "toolInterceptors", "cacheStats.hitRate", "retryStats.totalRetries",
		"interceptors.0.invocationCount", "orderConflicts", "chainBuildCount", "lastBuildTimeMs"} {
		require.True(t, gjson.Get(stats.body, key).Exists(), "ST-4 %s", key)
	}
	require.Equal(t, "LoggingModelInterceptor", gjson.Get(stats.body, "interceptors.1.name").Str, "contracts 22")

	require.Equal(t, 200, post("/LoggingModelInterceptor/disable", "").StatusCode, "HT-1")
	require.False(t, enabled("logging"))
	require.Equal(t, 200, post("/logging/disable", "").StatusCode, "HT-5")
	require.Equal(t, 200, post("/logging/enable", "").StatusCode, "HT-3")
	require.True(t, enabled("logging"))
	post("/nope/disable", "").isFault(t, messages.NotFound) // HT-4

	post("/pii/disable", "").isFault(t, messages.Conflict)
	post("/pii/disable?confirm=logging", "").isFault(t, messages.InvalidRequest)
	post("/pii/disable", `{"confirm":"logging"}`).isFault(t, messages.InvalidRequest)
	post("/pii/disable", `{"confirm":`).isFault(t, messages.InvalidRequest)
	require.True(t, enabled("pii"))
	require.Equal(t, 200, post("/pii/disable?confirm=pii", "").StatusCode)
	require.False(t, enabled("pii"))
	require.Equal(t, 200, post("/pii/enable", "").StatusCode, "no confirmation to turn on")
	require.Equal(t, 200, post("/pii/disable", `{"confirm":"pii"}`).StatusCode)

	got := g.do(t, "GET", api+"/diagnostics", "")
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, "mandatory", gjson.Get(got.body, "stages.0.tier").Str)
}

func TestWhoReachesControl(t *testing.T) {
	t.Parallel()
	t.Run("with keys: operators only", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "127.0.0.1:8080", func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
		for _, r := range []struct{ method, path string }{{"GET", "-stats"}, {"GET", "/diagnostics"}, {"POST", "/logging/disable"}, {"POST", "/nope/enable"}} {
			g.do(t, r.method, api+r.path, "").isFault(t, messages.Unauthenticated)
			g.do(t, r.method, api+r.path, "", authA).isFault(t, messages.Forbidden)
		}
		require.Equal(t, 200, g.do(t, "POST", api+"/logging/disable", "", authOp).StatusCode)
		require.Contains(t, g.do(t, "POST", api+"/logging/disable", "", authOp).body, `"by":"op"`)
	})
	t.Run("beyond loopback: not on the main port, whoever asks", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "0.0.0.0:8080", func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
		g.do(t, "GET", api+"-stats", "", authOp).isFault(t, messages.NotFound)
		g.do(t, "POST", api+"/logging/disable", "", authOp).isFault(t, messages.NotFound)
		require.Equal(t, 200, g.chat(t, goodBody, authA, "Host: api.example").StatusCode)
	})
	t.Run("the admin listener has control and health, no model face", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "0.0.0.0:8080", func(c *settings, _ *parts) { c.InsecureOpen = true })
		admin := httptest.NewServer(g.s.adminHandler())
		defer admin.Close()
		a := &testGateway{Server: admin, s: g.s}
		require.Equal(t, 200, a.do(t, "GET", api+"-stats", "").StatusCode)
		require.Equal(t, 200, a.do(t, "GET", "/readyz", "").StatusCode)
		a.do(t, "GET", "/v1/models", "").isFault(t, messages.NotFound)
		a.do(t, "GET", api+"-stats", "", "Host: evil.example").isFault(t, messages.Forbidden)
	})
	t.Run("browsers", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "127.0.0.1:8080", func(c *settings, _ *parts) { c.AllowedOrigins = []string{"https://good.example"} })
		for name, headers := range map[string][]string{
			"rebinding":                {"Host: evil.example:8080"},
			"another site":             {"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"},
			"another site, no headers": {"Origin: https://evil.example"},
			"allowed for the API only": {"Origin: https://good.example", "Sec-Fetch-Site: cross-site"},
			"a host of the API only":   {"Host: good.example"},
		} {
			got := g.do(t, "POST", api+"/logging/disable", "", headers...)
			require.Equal(t, http.StatusForbidden, got.StatusCode, name)
		}
		require.Equal(t, 200, g.do(t, "POST", api+"/logging/disable", "", "Origin: "+g.URL, "Sec-Fetch-Site: same-origin").StatusCode)
	})
}

// TestTodoSessions: a session is named in the path, or by the header where its name holds a slash.
func TestTodoSessions(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	g := start(t, &localEntry{}, func(_ *settings, p *parts) {
		p.Todo = &todoLists{
			Load: func(_ context.Context, tenant, session string) (any, error) {
				seen <- tenant + " " + session
				return map[string]int{}, nil
			},
			Edit: func(_ context.Context, tenant, session string, body []byte) (any, error) {
				seen <- tenant + " " + session + " " + string(body)
				return map[string]int{}, nil
			},
		}
	})
	require.Equal(t, http.StatusOK, g.do(t, "GET", "/v1/todo/a.b", "").StatusCode)
	require.Equal(t, "default a.b", <-seen)
	require.Equal(t, http.StatusOK, g.do(t, "GET", "/v1/todo", "", "Shallot-Session: a/b*").StatusCode)
	require.Equal(t, "default a/b*", <-seen)
	require.Equal(t, http.StatusOK, g.do(t, "PUT", "/v1/todo", `{"items":[]}`, "Shallot-Session: a/b*").StatusCode)
	require.Equal(t, `default a/b* {"items":[]}`, <-seen)
}
