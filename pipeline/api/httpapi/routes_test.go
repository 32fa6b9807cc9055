package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, nil)
	for _, path := range []string{"/", "/nope", "/v1", "/v1/nope", "/v1/rerank", "/v1/chat/completions/x",
		"/v1/chat/completions/"} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			got := g.Do(t, method, path, "")
			got.IsFault(t, messages.NotFound)
			require.Equal(t, 404, got.StatusCode)
		}
	}
	for path, allow := range map[string]string{
		"/v1/chat/completions": "OPTIONS, POST", "/v1/models": "GET, HEAD, OPTIONS", "/v1/models/m1": "GET, HEAD, OPTIONS",
		"/livez": "GET, HEAD, OPTIONS", "/v1/results/x": "GET, HEAD, OPTIONS",
		"/api/debug/interceptor/x/enable": "OPTIONS, POST",
	} {
		if strings.HasPrefix(path, "/api") {
			g = controlled(t, "127.0.0.1:8080", nil)
		}
		got := g.Do(t, "DELETE", path, "")
		got.IsFault(t, messages.MethodNotAllowed)
		require.Equal(t, 405, got.StatusCode)
		require.Equal(t, allow, got.Header.Get("Allow"))
		got = g.Do(t, "OPTIONS", path, "")
		require.Equal(t, 204, got.StatusCode)
		require.Equal(t, allow, got.Header.Get("Allow"))
	}
	require.Equal(t, 405, g.Do(t, "HEAD", "/v1/chat/completions", "").StatusCode)
	require.Equal(t, 200, g.Do(t, "HEAD", "/health", "").StatusCode)
}

// TestPathTricks: a target that two readers could read as two paths gets the same answer with and without a key.
func TestPathTricks(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := controlledBy(t, d, "127.0.0.1:8080", func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
	for _, target := range []string{
		"//v1/models", "/v1//models", "/v1/../v1/models", "/v1/./models", "/v1/%2e%2e/v1/models",
		"/v1%2fmodels", "/%2Fv1/models",
		`/v1/models\x`, "/v1/models%5cx", "/livez/../v1/models", "/v1/models/../../api/debug/interceptor-stats",
		"/v1/models/%2e%2e/models",
		"/v1/models/a%2f..%2fb", "/v1/models/a%2f%2fb", "/livez%2f..%2fapi/debug/interceptor-stats", "/v1/models%00",
		"http://evil.example/v1/models",
		"http://localhost/v1/models", "/api/debug/interceptor-stats/", "/API/debug/interceptor-stats", "/v1/models;x=1/../y",
	} {
		ask := func(auth string) string {
			out := g.Raw(t,
				fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost\r\n%sX-Request-Id: same\r\nConnection: close\r\n\r\n", target,
					auth))
			status, _, _ := strings.Cut(out, "\r\n")
			_, body, _ := strings.Cut(out, "\r\n\r\n")
			return status + body
		}
		without := ask("")
		require.Contains(t, without, " 404 ", target)
		require.NotContains(t, without, "Location", "no redirect")
		require.Equal(t, without, ask(apitest.AuthOp+"\r\n"), target)
	}
}

func TestCORS(t *testing.T) {
	t.Parallel()
	pre := []string{"Access-Control-Request-Method: POST",
		"Access-Control-Request-Headers: authorization, x-stainless-os, x-stainless-retry-count, x-evil"}
	g := start(t, &apitest.Entry{}, func(c *Config, p *Deps) {
		c.AllowedOrigins = []string{"https://good.example"}
		p.Keys = twoTenants(t)
	})
	got := g.Do(t, "OPTIONS", "/v1/chat/completions", "", append(pre, "Origin: https://good.example")...)
	require.Equal(t, 204, got.StatusCode, "a preflight has no key")
	require.Equal(t, "https://good.example", got.Header.Get("Access-Control-Allow-Origin"))
	require.Empty(t, got.Header.Get("Access-Control-Allow-Credentials"))
	for _, want := range []string{"Authorization", "Content-Type", "x-stainless-os", "x-stainless-retry-count"} {
		require.Contains(t, got.Header.Get("Access-Control-Allow-Headers"), want)
	}
	require.NotContains(t, got.Header.Get("Access-Control-Allow-Headers"), "x-evil")
	require.Contains(t, got.Header.Get("Access-Control-Allow-Methods"), "POST")

	got = g.Do(t, "OPTIONS", "/v1/chat/completions", "", append(pre, "Origin: https://evil.example")...)
	require.Equal(t, 204, got.StatusCode)
	require.Empty(t, got.Header.Get("Access-Control-Allow-Origin"))

	got = g.Chat(t, apitest.GoodBody, "Origin: https://good.example", apitest.AuthA)
	require.Equal(t, 200, got.StatusCode)
	require.Contains(t, got.Header.Get("Access-Control-Expose-Headers"), "X-Request-Id")
	require.Equal(t, "Origin", got.Header.Get("Vary"))
	got = g.Chat(t, apitest.GoodBody, "Origin: https://good.example")
	require.Equal(t, "https://good.example", got.Header.Get("Access-Control-Allow-Origin"), "a page may read the 401")

	g = controlled(t, "127.0.0.1:8080", func(c *Config, _ *Deps) { c.AllowedOrigins = []string{"*"} })
	require.Equal(t, "*", g.Chat(t, apitest.GoodBody,
		"Origin: https://any.example").Header.Get("Access-Control-Allow-Origin"))
	got = g.Do(t, "GET", "/api/debug/interceptor-stats", "", "Origin: https://any.example")
	require.Empty(t, got.Header.Get("Access-Control-Allow-Origin"), "no page reads the control surfaces")
}

func TestPanicsBecomeAnswers(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{Refuse: func(pipeline.Request) error { panic("secret detail") }}, nil)
	got := g.Chat(t, apitest.GoodBody)
	got.IsFault(t, messages.Internal)
	require.Equal(t, 500, got.StatusCode)
	require.NotContains(t, got.Body, "secret")
	require.Contains(t, got.Message(), got.Header.Get("X-Request-Id"))
	require.Contains(t, g.log.String(), "secret detail")
	require.Equal(t, 200, g.Do(t, "GET", "/livez", "").StatusCode, "the gateway lives on")

	g = start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Extra = []Surface{{Pattern: "/half", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("half"))
			panic("too late")
		})}}
	})
	out := g.Raw(t, "GET /half HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.True(t, out == "" || strings.HasSuffix(out, "half"), "a half answer is cut off: %q", out)
}

func TestHealth(t *testing.T) {
	t.Parallel()
	checks := []api.Check{{Name: "nats", OK: true}, {Name: "streams", OK: true, Reason: "2 of 2"}}
	g := start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Ready = func(context.Context) []api.Check { return checks }
		p.Keys = twoTenants(t)
	})
	require.Equal(t, 200, g.Do(t, "GET", "/livez", "").StatusCode)
	for _, path := range []string{"/readyz", "/healthz", "/health"} {
		got := g.Do(t, "GET", path, "")
		require.Equal(t, 200, got.StatusCode, "probes need no key")
		require.JSONEq(t,
			`{"status":"ok","checks":[{"name":"nats","ok":true},{"name":"streams","ok":true,"reason":"2 of 2"}]}`, got.Body)
	}
	checks[0] = api.Check{Name: "nats", Reason: "not connected since 3s"}
	got := g.Do(t, "GET", "/readyz", "")
	require.Equal(t, 503, got.StatusCode)
	require.Equal(t, "not connected since 3s", gjson.Get(got.Body, "checks.0.reason").Str)
	require.Equal(t, 200, g.Do(t, "GET", "/livez", "").StatusCode)
	checks[0] = api.Check{Name: "nats", OK: true}
	g.s.stopping.Store(true)
	require.Equal(t, 503, g.Do(t, "GET", "/readyz", "").StatusCode)
}

func TestMountedSurfaceKnowsWhoAsks(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Keys = twoTenants(t)
		p.Extra = []Surface{{Pattern: "/mcp", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, api.IdentityOf(r.Context()).Tenant, r.Header.Get("Authorization"))
		})}}
	})
	require.Equal(t, "ta", g.Do(t, "POST", "/mcp", "{}", apitest.AuthA).Body, "and the key ends at the gateway")
	g.Do(t, "POST", "/mcp", "{}").IsFault(t, messages.Unauthenticated)
}

// A call has one line in the log, which says how it ended: a plain one, a streamed one and one that failed.
func TestOneLineACall(t *testing.T) {
	t.Parallel()
	reply := `{"object":"chat.completion","model":"m1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`
	for name, row := range map[string]struct {
		body, says string
		target     pipeline.TargetFunc
	}{
		"plain": {apitest.GoodBody, `"attempts":1,"model":"[^"]+","input_tokens":7,"output_tokens":3}`,
			apitest.Replies(reply)},
		"streamed": {apitest.StreamBody, `"attempts":1,"model":"[^"]+","input_tokens":7,"output_tokens":3}`,
			apitest.Replies(reply)},
		"failed": {apitest.GoodBody, `"status":503.*"fault":"overloaded","origin":"target"}`,
			func(context.Context, *messages.Call, pipeline.Emit) error {
				return messages.NewFault(messages.Overloaded, "full").From(messages.TargetOrigin)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, &apitest.Entry{Target: row.target}, nil)
			g.Chat(t, row.body)
			g.Close()
			lines := strings.Split(strings.TrimSpace(g.log.String()), "\n")
			require.Len(t, lines, 1, lines)
			require.Regexp(t, row.says, lines[0])
		})
	}
}
