package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func testManager(t *testing.T) *pipeline.Manager {
	t.Helper()
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	m := &pipeline.Manager{}
	require.NoError(t, m.Register(pipeline.Stage{Name: "pii", Kind: messages.Model, Order: 6, Tier: pipeline.Mandatory,
		Before: pass}, true))
	require.NoError(t, m.Register(pipeline.Stage{Name: "logging", Alias: "LoggingModelInterceptor", Kind: messages.Model,
		Order: 100, Before: pass}, true))
	return m
}

func controlled(t *testing.T, addr string, edit func(*Config, *Deps)) *testGateway {
	return controlledBy(t, &apitest.Entry{}, addr, edit)
}

func controlledBy(t *testing.T, d *apitest.Entry, addr string, edit func(*Config, *Deps)) *testGateway {
	t.Helper()
	return start(t, d, func(c *Config, p *Deps) {
		c.Addr = addr
		p.Control = pipeline.LocalControl{Manager: testManager(t)}
		if edit != nil {
			edit(c, p)
		}
	})
}

const debugAPI = "/api/debug/interceptor"

func TestControlSurfaces(t *testing.T) {
	t.Parallel()
	g := controlled(t, "127.0.0.1:8080", nil)
	enabled := func(name string) bool {
		got := g.Do(t, "GET", debugAPI+"-stats", "")
		require.Equal(t, 200, got.StatusCode, got.Body)
		return gjson.Get(got.Body, `interceptors.#(stage=="`+name+`").enabled`).Bool()
	}
	post := func(path, body string) apitest.Reply { return g.Do(t, "POST", debugAPI+path, body) }

	stats := g.Do(t, "GET", debugAPI+"-stats", "")
	for _, key := range []string{"modelInterceptors.0.name", "toolInterceptors", "cacheStats.hitRate",
		"retryStats.totalRetries",
		"interceptors.0.invocationCount", "orderConflicts", "chainBuildCount", "lastBuildTimeMs"} {
		require.True(t, gjson.Get(stats.Body, key).Exists(), "ST-4 %s", key)
	}
	require.Equal(t, "LoggingModelInterceptor", gjson.Get(stats.Body, "interceptors.1.name").Str)

	require.Equal(t, 200, post("/LoggingModelInterceptor/disable", "").StatusCode, "HT-1")
	require.False(t, enabled("logging"))
	require.Equal(t, 200, post("/logging/disable", "").StatusCode, "HT-5")
	require.Equal(t, 200, post("/logging/enable", "").StatusCode, "HT-3")
	require.True(t, enabled("logging"))
	post("/nope/disable", "").IsFault(t, messages.NotFound) // HT-4

	post("/pii/disable", "").IsFault(t, messages.Conflict)
	post("/pii/disable?confirm=logging", "").IsFault(t, messages.InvalidRequest)
	post("/pii/disable", `{"confirm":"logging"}`).IsFault(t, messages.InvalidRequest)
	post("/pii/disable", `{"confirm":`).IsFault(t, messages.InvalidRequest)
	require.True(t, enabled("pii"))
	require.Equal(t, 200, post("/pii/disable?confirm=pii", "").StatusCode)
	require.False(t, enabled("pii"))
	require.Equal(t, 200, post("/pii/enable", "").StatusCode, "no confirmation to turn on")
	require.Equal(t, 200, post("/pii/disable", `{"confirm":"pii"}`).StatusCode)

	got := g.Do(t, "GET", debugAPI+"/diagnostics", "")
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, "mandatory", gjson.Get(got.Body, "stages.0.tier").Str)
}

func TestWhoReachesControl(t *testing.T) {
	t.Parallel()
	t.Run("with keys: operators only", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "127.0.0.1:8080", func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
		for _, r := range []struct{ method, path string }{{"GET", "-stats"}, {"GET", "/diagnostics"},
			{"POST", "/logging/disable"}, {"POST", "/nope/enable"}} {
			g.Do(t, r.method, debugAPI+r.path, "").IsFault(t, messages.Unauthenticated)
			g.Do(t, r.method, debugAPI+r.path, "", apitest.AuthA).IsFault(t, messages.Forbidden)
		}
		require.Equal(t, 200, g.Do(t, "POST", debugAPI+"/logging/disable", "", apitest.AuthOp).StatusCode)
		require.Contains(t, g.Do(t, "POST", debugAPI+"/logging/disable", "", apitest.AuthOp).Body, `"by":"op"`)
	})
	t.Run("beyond loopback: not on the main port, whoever asks", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "0.0.0.0:8080", func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
		g.Do(t, "GET", debugAPI+"-stats", "", apitest.AuthOp).IsFault(t, messages.NotFound)
		g.Do(t, "POST", debugAPI+"/logging/disable", "", apitest.AuthOp).IsFault(t, messages.NotFound)
		require.Equal(t, 200, g.Chat(t, apitest.GoodBody, apitest.AuthA, "Host: debugAPI.example").StatusCode)
	})
	t.Run("the admin listener has control and health, no model face", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "0.0.0.0:8080", func(c *Config, _ *Deps) { c.InsecureOpen = true })
		admin := httptest.NewServer(g.s.AdminHandler())
		defer admin.Close()
		a := &testGateway{Client: apitest.Client{Server: admin}, s: g.s}
		require.Equal(t, 200, a.Do(t, "GET", debugAPI+"-stats", "").StatusCode)
		require.Equal(t, 200, a.Do(t, "GET", "/readyz", "").StatusCode)
		a.Do(t, "GET", "/v1/models", "").IsFault(t, messages.NotFound)
		a.Do(t, "GET", debugAPI+"-stats", "", "Host: evil.example").IsFault(t, messages.Forbidden)
	})
	t.Run("browsers", func(t *testing.T) {
		t.Parallel()
		g := controlled(t, "127.0.0.1:8080", func(c *Config, _ *Deps) { c.AllowedOrigins = []string{"https://good.example"} })
		for name, headers := range map[string][]string{
			"rebinding":                {"Host: evil.example:8080"},
			"another site":             {"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"},
			"another site, no headers": {"Origin: https://evil.example"},
			"allowed for the API only": {"Origin: https://good.example", "Sec-Fetch-Site: cross-site"},
			"a host of the API only":   {"Host: good.example"},
		} {
			got := g.Do(t, "POST", debugAPI+"/logging/disable", "", headers...)
			require.Equal(t, http.StatusForbidden, got.StatusCode, name)
		}
		require.Equal(t, 200, g.Do(t, "POST", debugAPI+"/logging/disable", "", "Origin: "+g.URL,
			"Sec-Fetch-Site: same-origin").StatusCode)
	})
}

// TestTodoSessions: a session is named in the path, or by the header where its name holds a slash.
func TestTodoSessions(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	g := start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Todo = &TodoLists{
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
	require.Equal(t, http.StatusOK, g.Do(t, "GET", "/v1/todo/a.b", "").StatusCode)
	require.Equal(t, "default a.b", <-seen)
	require.Equal(t, http.StatusOK, g.Do(t, "GET", "/v1/todo", "", "Shallot-Session: a/b*").StatusCode)
	require.Equal(t, "default a/b*", <-seen)
	require.Equal(t, http.StatusOK, g.Do(t, "PUT", "/v1/todo", `{"items":[]}`, "Shallot-Session: a/b*").StatusCode)
	require.Equal(t, `default a/b* {"items":[]}`, <-seen)
}
