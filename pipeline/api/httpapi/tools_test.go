package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/evicted"
)

// shelf is a toolShelf of two tools, one of them held, that remembers who changed what.
type shelf struct{ did []string }

func shelved(name, held string) api.ToolInfo {
	return api.ToolInfo{
		FunctionTool: api.FunctionTool{Type: "function",
			Function: api.ToolFunction{Name: name, Description: "d", Parameters: json.RawMessage(`{"type":"object"}`)}},
		Policy: api.ToolPolicy{Version: "1", Effect: "read", Hash: "h-" + name, Held: held}, Executor: "http://inside/",
	}
}

func (s *shelf) ListTools(context.Context) ([]api.ToolInfo, error) {
	return []api.ToolInfo{shelved("add", ""), shelved("turned", "its words changed")}, nil
}

func (s *shelf) GetTool(_ context.Context, name string) (api.ToolInfo, error) {
	switch name {
	case "add":
		return shelved("add", ""), nil
	case "turned":
		return shelved("turned", "its words changed"), nil
	}
	return api.ToolInfo{}, messages.NewFault(messages.ToolNotFound, "there is no tool '%s'", name)
}

func (s *shelf) RegisterTool(_ context.Context, def []byte, by string) (api.ToolInfo, error) {
	s.did = append(s.did, "register "+string(def)+" by "+by)
	return shelved("new", ""), nil
}

func (s *shelf) RemoveTool(_ context.Context, name, by string) error {
	s.did = append(s.did, "remove "+name+" by "+by)
	return nil
}

func (s *shelf) ApproveTool(_ context.Context, name, hash, by string) (api.ToolInfo, error) {
	s.did = append(s.did, "approve "+name+" "+hash+" by "+by)
	return shelved(name, ""), nil
}

func (s *shelf) ReadEvicted(_ context.Context, tenant, path string, offset, limit int) (evicted.Part, error) {
	if tenant != "ta" {
		return evicted.Part{}, messages.NewFault(messages.NotFound, "nothing")
	}
	return evicted.Part{Text: fmt.Sprintf("%s %d", path, limit), Offset: offset}, nil
}

func TestReadEvicted(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, withShelf(&shelf{}, twoTenants(t)))
	got := g.Do(t, "GET", "/v1/evicted/a/tool_1.txt?offset=3&limit=5", "", apitest.AuthA)
	require.Equal(t, 200, got.StatusCode, got.Body)
	require.Equal(t, "a/tool_1.txt 5", gjson.Get(got.Body, "text").String())
	require.Equal(t, int64(3), gjson.Get(got.Body, "offset").Int())
	// as a summary shows it where results lie in a directory, and as clients encode it
	for target, path := range map[string]string{
		"/v1/evicted//tmp/e/a/t_1.txt": "tmp/e/a/t_1.txt", "/v1/evicted/tmp/e/a/t_1.txt": "tmp/e/a/t_1.txt",
		"/v1/evicted/%2Ftmp%2Fe%2Fa%2Ft_1.txt":      "/tmp/e/a/t_1.txt",
		"/v1/evicted/shallot-evicted%2Fa%2Ft_1.txt": "shallot-evicted/a/t_1.txt",
	} {
		got := g.Raw(t, "GET "+target+" HTTP/1.1\r\nHost: localhost\r\n"+apitest.AuthA+"\r\nConnection: close\r\n\r\n")
		require.Contains(t, got, `"text":"`+path+" 0", target)
	}
	for _, target := range []string{"/v1/evicted///tmp/x", "/v1/evicted/%2e%2e%2fx", "/v1/evicted/a%2f..%2fx",
		"/v1/evicted//../x", "/v1/evicted/a//b"} {
		require.Contains(t,
			g.Raw(t, "GET "+target+" HTTP/1.1\r\nHost: localhost\r\n"+apitest.AuthA+"\r\nConnection: close\r\n\r\n"), " 404 ",
			target)
	}
	g.Do(t, "GET", "/v1/evicted/a/tool_1.txt", "", apitest.AuthB).IsFault(t, messages.NotFound)
	g.Do(t, "GET", "/v1/evicted/a/tool_1.txt", "").IsFault(t, messages.Unauthenticated)
	g.Do(t, "GET", "/v1/evicted/a/../../x", "", apitest.AuthA).IsFault(t, messages.NotFound)
	g.Do(t, "GET", "/v1/evicted/a?limit=-1", "", apitest.AuthA).IsFault(t, messages.InvalidRequest)
}

func withShelf(s ToolService, keys *KeyStore) func(*Config, *Deps) {
	return func(_ *Config, p *Deps) { p.Tools, p.Keys = s, keys }
}

func TestCallTool(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{Target: apitest.Replies(`{"sum":9007199254740993}`)}
	g := start(t, d, withShelf(&shelf{}, nil))
	got := g.Do(t, "POST", "/v1/tools/add/call", `{"b":1,"a":9007199254740992}`, "Idempotency-Key: k",
		"Shallot-Timeout: 5s", "X-Request-Id: r")
	require.Equal(t, 200, got.StatusCode, got.Body)
	require.Equal(t, `{"sum":9007199254740993}`, got.Body)
	req := d.Last(t)
	require.Equal(t, messages.Tool, req.Kind)
	require.Equal(t, []string{"add", `{"b":1,"a":9007199254740992}`, "k", "r", "default"},
		[]string{req.Tool, string(req.Body), req.IdempotencyKey, req.RequestID, req.Tenant})
	require.False(t, req.Deadline.IsZero())

	require.Equal(t, 200, g.Do(t, "POST", "/v1/tools/add/call", "").StatusCode, "no body is no arguments")
	require.Equal(t, `{}`, string(d.Last(t).Body))
	g.Do(t, "POST", "/v1/tools/add/call", `{"a":1`)
	require.Equal(t, `{"a":1`, string(d.Last(t).Body), "what the arguments mean is the stage's to say")
	g.Do(t, "POST", "/v1/tools/add/call", strings.Repeat("[", 100)).IsFault(t, messages.TooLarge)
	g.Do(t, "POST", "/v1/tools/add/call", `{}`, "Content-Type: text/html").IsFault(t, messages.UnsupportedMedia)
	g.Do(t, "POST", "/v1/tools/add/call", `{}`, "Shallot-Stage: x").IsFault(t, messages.InvalidRequest)
	g.Do(t, "GET", "/v1/tools/add/call", "").IsFault(t, messages.MethodNotAllowed)
	async := g.Do(t, "POST", "/v1/tools/add/call", `{}`, "Prefer: respond-async")
	require.Equal(t, 202, async.StatusCode)
	require.True(t, d.Last(t).Submit)
	require.Contains(t, async.Header.Get("Location"), "/v1/results/")

	text := start(t, &apitest.Entry{Target: apitest.Replies(`plain words`)}, withShelf(&shelf{}, nil)).Do(t, "POST",
		"/v1/tools/add/call", `{}`)
	require.Equal(t, "plain words", text.Body)
	require.Contains(t, text.Header.Get("Content-Type"), "text/plain")
	require.Equal(t, []string{"no-store", "11"}, []string{text.Header.Get("Cache-Control"),
		text.Header.Get("Content-Length")})

	small := start(t, &apitest.Entry{}, func(c *Config, p *Deps) { c.BodyLimit, p.Tools = 16, &shelf{} })
	small.Do(t, "POST", "/v1/tools/add/call", `{"a":"0123456789abcdef"}`).IsFault(t, messages.TooLarge)
}

func TestListTools(t *testing.T) {
	t.Parallel()
	keys := keysOf(t,
		fmt.Sprintf("keys:\n  - {id: a, hash: %q, tools: [\"a*\"]}\n  - {id: n, hash: %q, tools: [none]}\n"+
			"  - {id: op, hash: %q, role: operator}\n",
			HashKey("key-a", nil), HashKey("key-n", nil), HashKey("key-op", nil)))
	g := start(t, &apitest.Entry{}, withShelf(&shelf{}, keys))
	got := g.Do(t, "GET", "/v1/tools", "", apitest.AuthA)
	require.JSONEq(t, `[{"type":"function","function":{"name":"add","description":"d","parameters":{"type":"object"}}}]`,
		gjson.Get(got.Body, "data").Raw, "it can stand as tools in a chat request")
	require.Equal(t, "read", gjson.Get(got.Body, "policies.add.effect").String())
	require.False(t, gjson.Get(got.Body, "held").Exists(), "words that nobody approved are shown to operators only")
	require.Equal(t, "h-turned", gjson.Get(g.Do(t, "GET", "/v1/tools", "", apitest.AuthOp).Body, "held.0.hash").String())
	require.Empty(t, gjson.Get(g.Do(t, "GET", "/v1/tools", "", "Authorization: Bearer key-n").Body, "data").Array())
	g.Do(t, "GET", "/v1/tools", "").IsFault(t, messages.Unauthenticated)

	one := g.Do(t, "GET", "/v1/tools/add", "", apitest.AuthA)
	require.Equal(t, "add", gjson.Get(one.Body, "function.name").String())
	require.False(t, gjson.Get(one.Body, "executor").Exists(), "where it runs is the operator's to know")
	require.Equal(t, "http://inside/", gjson.Get(g.Do(t, "GET", "/v1/tools/add", "", apitest.AuthOp).Body,
		"executor").String())
	for _, path := range []string{"/v1/tools/nope", "/v1/tools/turned"} {
		g.Do(t, "GET", path, "", apitest.AuthA).IsFault(t, messages.ToolNotFound)
	}
	g.Do(t, "GET", "/v1/tools/add", "", "Authorization: Bearer key-n").IsFault(t, messages.ToolNotFound)
	g.Do(t, "POST", "/v1/tools/add/call", "{}", "Authorization: Bearer key-n").IsFault(t, messages.Forbidden)
}

// dotted is a shelf with names that model APIs refuse.
type dotted struct{ shelf }

func (d *dotted) ListTools(context.Context) ([]api.ToolInfo, error) {
	return []api.ToolInfo{shelved("a.b", ""), shelved("a_b", ""), shelved(strings.Repeat("n", 100), "")}, nil
}

func (d *dotted) GetTool(_ context.Context, name string) (api.ToolInfo, error) {
	return shelved(name, ""), nil
}

func TestModelNames(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{Target: apitest.Replies(`1`)}
	keys := keysOf(t, fmt.Sprintf("keys:\n  - {id: a, hash: %q}\n  - {id: n, hash: %q, tools: [\"a_b*\"]}\n",
		HashKey("key-a", nil), HashKey("key-n", nil)))
	g := start(t, d, withShelf(&dotted{}, keys))
	got := g.Do(t, "GET", "/v1/tools", "", apitest.AuthA)
	names := gjson.Get(got.Body, "data.#.function.name").Array()
	require.Len(t, names, 3)
	seen := map[string]bool{}
	for i, own := range []string{"a.b", "a_b", strings.Repeat("n", 100)} {
		offered := names[i].String()
		require.Regexp(t, `^[A-Za-z0-9_-]{1,64}$`, offered)
		require.False(t, seen[offered])
		seen[offered] = true
		require.True(t, gjson.Get(got.Body, "policies."+strings.ReplaceAll(own, ".", `\.`)).Exists())
		for _, version := range []string{"", "@2"} {
			require.Equal(t, 200, g.Do(t, "POST", "/v1/tools/"+offered+version+"/call", "{}", apitest.AuthA).StatusCode)
			require.Equal(t, own+version, d.Last(t).Tool, "what a model calls is the tool")
		}
		require.Equal(t, own, gjson.Get(g.Do(t, "GET", "/v1/tools/"+offered, "", apitest.AuthA).Body,
			"function.name").String())
	}
	require.Equal(t, "a_b", names[1].String(), "a name that is taken stays")
	g.Do(t, "POST", "/v1/tools/"+names[0].String()+"/call", "{}", "Authorization: Bearer key-n").IsFault(t,
		messages.Forbidden)
	g.Do(t, "POST", "/v1/tools/a_b_00000000/call", "{}", apitest.AuthA)
	require.Equal(t, "a_b_00000000", d.Last(t).Tool)
}

func TestRegisterTool(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	g := start(t, &apitest.Entry{}, withShelf(s, twoTenants(t)))
	for _, r := range [][2]string{{"POST", "/v1/tools"}, {"DELETE", "/v1/tools/add"}, {"POST", "/v1/tools/add/approve"}} {
		g.Do(t, r[0], r[1], `{}`, apitest.AuthA).IsFault(t, messages.Forbidden)
		g.Do(t, r[0], r[1], `{}`).IsFault(t, messages.Unauthenticated)
		g.Do(t, r[0], r[1], `{}`, apitest.AuthOp, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site").IsFault(t,
			messages.Forbidden)
		g.Do(t, r[0], r[1], `{}`, apitest.AuthOp, "Host: evil.example").IsFault(t, messages.Forbidden)
	}
	require.Empty(t, s.did)
	got := g.Do(t, "POST", "/v1/tools", `{"name":"new"}`, apitest.AuthOp)
	require.Equal(t, 201, got.StatusCode, got.Body)
	require.Equal(t, "/v1/tools/new", got.Header.Get("Location"))
	require.Equal(t, 204, g.Do(t, "DELETE", "/v1/tools/new@2", "", apitest.AuthOp).StatusCode)
	require.Equal(t, 200, g.Do(t, "POST", "/v1/tools/new/approve", `{"hash":"x"}`, apitest.AuthOp).StatusCode)
	g.Do(t, "POST", "/v1/tools/new/approve", `{}`, apitest.AuthOp).IsFault(t, messages.InvalidRequest)
	g.Do(t, "POST", "/v1/tools", `[`, apitest.AuthOp).IsFault(t, messages.InvalidRequest)
	require.Equal(t, []string{`register {"name":"new"} by op`, "remove new@2 by op", "approve new x by op"}, s.did)

	t.Run("beyond loopback only on the admin listener", func(t *testing.T) {
		public := start(t, &apitest.Entry{}, func(c *Config, p *Deps) {
			c.Addr, p.Tools, p.Keys = "0.0.0.0:8080", s,
				twoTenants(t)
		})
		refused := public.Do(t, "POST", "/v1/tools", `{"name":"new"}`, apitest.AuthOp)
		refused.IsFault(t, messages.Forbidden)
		require.Contains(t, refused.Message(), "admin")
		admin := httptest.NewServer(public.s.AdminHandler())
		t.Cleanup(admin.Close)
		g := &testGateway{Client: apitest.Client{Server: admin}}
		require.Equal(t, 201, g.Do(t, "POST", "/v1/tools", `{"name":"new"}`, apitest.AuthOp).StatusCode)
		g.Do(t, "POST", "/v1/tools/add/call", `{}`, apitest.AuthOp).IsFault(t, messages.NotFound)
	})
}
