//go:build unix

package process

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// row is a stage's row of a statistics body.
func row(body []byte, stage, kind string) gjson.Result {
	return gjson.GetBytes(body, `interceptors.#(stage=="`+stage+`")#|#(type=="`+kind+`")`)
}

// switchBound is what HT-8 states: how long a switch takes to reach every process. A busy machine takes its time, so it
// is the fastest of several switches that has to be within it.
const switchBound = time.Second

func TestControl(t *testing.T) {
	t.Parallel()
	// HT-7: logging is off by configuration. OC-5: two stages share an order, and nothing that they write.
	c := newCluster(t, "SHALLOT_AGENT__INTERCEPTOR__LOGGING__ENABLED=false",
		"SHALLOT_AGENT__INTERCEPTOR__SUB_AGENT__ORDER=70")
	_, one := c.gateway()
	_, two := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	js, err := jetstream.New(c.nc)
	require.NoError(t, err)

	const stats, debug = "/api/debug/interceptor-stats", "/api/debug/interceptor/"
	look := func() []byte {
		a := c.http("GET", one+stats, "")
		require.Equal(t, 200, a.status, string(a.body))
		return a.body
	}
	chat := func(base string) []string {
		a := c.http("POST", base+"/v1/chat/completions", echo)
		require.Equal(t, 200, a.status, string(a.body))
		return a.path()
	}
	fastest := time.Hour
	follows := func(t *testing.T, base string, path []string, why string) {
		t.Helper()
		begin := time.Now()
		require.Eventually(t, func() bool { return slices.Equal(path, chat(base)) }, time.Minute, 20*time.Millisecond, why)
		fastest = min(fastest, time.Since(begin))
	}
	switchTo := func(base, name, verb string) answer { return c.http("POST", base+debug+name+"/"+verb, "") }
	full := []string{"audit.beforeModel", "logging.beforeModel", "model", "logging.afterModel",
		"model-fallback.afterModel", "audit.afterModel"}
	bare := []string{"audit.beforeModel", "model", "model-fallback.afterModel", "audit.afterModel"}

	r := row(look(), "audit", "model")
	require.Zero(t, r.Get("invocationCount").Int())
	require.Zero(t, r.Get("avgDurationMs").Float(), "ST-1 0 before any call")
	require.Equal(t, "null", r.Get("lastError").Raw, "ST-2 never failed")

	require.Equal(t, bare, chat(one), "HT-7 not run until it is enabled")
	require.False(t, row(look(), "logging", "model").Get("enabled").Bool(), "HT-7")
	require.Equal(t, 200, switchTo(one, "logging", "enable").status)
	require.Equal(t, full, chat(one), "HT-3 at its old position")
	follows(t, two, full, "HT-8 on the other node too")

	for range 3 {
		chat(one)
	}
	before := row(look(), "logging", "model").Get("invocationCount").Int()
	require.Equal(t, 200, switchTo(two, "LoggingModelInterceptor", "disable").status, "by the name of the specification")
	follows(t, one, bare, "HT-1, HT-8")
	r = row(look(), "logging", "model")
	require.False(t, r.Get("enabled").Bool(), "HT-1")
	require.GreaterOrEqual(t, r.Get("invocationCount").Int(), before)
	still := r.Get("invocationCount").Int()
	chat(one)
	chat(two)
	require.Equal(t, still, row(look(), "logging", "model").Get("invocationCount").Int(), "HT-1 its count is unchanged")
	require.Equal(t, 200, switchTo(one, "logging", "disable").status, "HT-5 twice")
	a := switchTo(one, "nonsense", "disable")
	require.Equal(t, 404, a.status, "HT-4")
	require.Equal(t, "not_found", gjson.GetBytes(a.body, "error.code").String())

	t.Run("a mandatory stage needs its name", func(t *testing.T) {
		require.Equal(t, 409, switchTo(one, "audit", "disable").status)
		require.Equal(t, 400, switchTo(one, "audit", "disable?confirm=logging").status)
		require.Equal(t, 200, switchTo(one, "audit", "disable?confirm=audit").status)
		require.NotContains(t, chat(one), "audit.beforeModel")
		require.Equal(t, 200, switchTo(one, "audit", "enable").status)
	})
	t.Run("S0-MGR by NATS request", func(t *testing.T) {
		require.Equal(t, 200, c.req("shallot.v1.control.enable", `{"name":"logging"}`).status)
		follows(t, one, full, "HT-8")
		require.Equal(t, 404, c.req("shallot.v1.control.disable", "nonsense").status, "HT-4")
		require.Equal(t, 409, c.req("shallot.v1.control.disable", "audit").status)
	})
	t.Run("S0-MGR by nats kv put", func(t *testing.T) {
		kv, err := js.KeyValue(t.Context(), jet.ControlBucket)
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), "stage.model.logging.enabled", []byte("false"))
		require.NoError(t, err)
		follows(t, one, bare, "HT-8")
		_, err = kv.Put(t.Context(), "stage.model.logging.enabled", []byte("perhaps"))
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), "stage.model.nobody.enabled", []byte("true"))
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), "stage.model.logging.enabled", []byte("true"))
		require.NoError(t, err)
		follows(t, two, full, "what is not understood changes nothing")
	})
	require.Less(t, fastest, switchBound, "HT-8")
	t.Run("a process that starts later follows the switch (S0-MGR-5)", func(t *testing.T) {
		require.Equal(t, 200, switchTo(one, "logging", "disable").status)
		_, late := c.gateway()
		require.Equal(t, bare, chat(late))
		require.Equal(t, 200, switchTo(one, "logging", "enable").status)
	})
	t.Run("ST", func(t *testing.T) {
		was := look()
		for range 3 {
			chat(one)
		}
		now := look()
		for _, stage := range []string{"audit", "logging", "model-fallback"} {
			w, n := row(was, stage, "model"), row(now, stage, "model")
			require.EqualValues(t, 3, n.Get("invocationCount").Int()-w.Get("invocationCount").Int(), "ST-1, ST-5 %s", stage)
			total := n.Get("totalDurationNanos").Float() / 1e6 / n.Get("invocationCount").Float()
			require.InDelta(t, total, n.Get("avgDurationMs").Float(), 1e-6, "ST-1")
		}
		require.EqualValues(t, 3, gjson.GetBytes(now, "chainBuildCount").Int()-gjson.GetBytes(was, "chainBuildCount").Int(),
			"ST-3")
		require.GreaterOrEqual(t, gjson.GetBytes(now, "lastBuildTimeMs").Float(), 0.0)
		for _, field := range []string{
			"modelInterceptors.0.name", "modelInterceptors.0.order", "toolInterceptors", "cacheStats.cacheSize",
			"cacheStats.cacheHits",
			"cacheStats.cacheMisses", "cacheStats.hitRate", "cacheStats.ttlMs", "retryStats.maxRetries",
			"retryStats.baseDelayMs",
			"retryStats.totalRetries", "retryStats.retriesExhausted", "interceptors.0.name", "interceptors.0.order",
			"interceptors.0.type",
			"interceptors.0.enabled", "interceptors.0.invocationCount", "interceptors.0.avgDurationMs",
			"interceptors.0.lastError",
			"orderConflicts", "chainBuildCount", "lastBuildTimeMs",
		} {
			require.True(t, gjson.GetBytes(now, field).Exists(), "ST-4 %s", field)
		}
		require.Equal(t, row(now, "audit", "model").Get("invocationCount").Int(),
			row(c.http("GET", two+stats, "").body, "audit", "model").Get("invocationCount").Int(),
			"any process tells the sum of all")
		require.Equal(t, row(now, "audit", "model").Raw,
			row(c.req("shallot.v1.control.stats", "").body, "audit", "model").Raw, "S0-API over NATS")
		bad := c.req("shallot.v1.tool.request.add", `{}`)
		require.Equal(t, 200, bad.status, "the ladder ends in a graceful error")
		require.Equal(t, "invalid_arguments", gjson.GetBytes(bad.body, "error").String())
		require.Contains(t, row(look(), "tool-arguments", "tool").Get("lastError").String(), "add", "ST-2 failed once")
		require.EqualValues(t, 1, row(look(), "tool-arguments", "tool").Get("errorCount").Int())
	})
	t.Run("a conflict is in statistics and diagnostics (OC-5)", func(t *testing.T) {
		for _, body := range [][]byte{look(), c.http("GET", one+debug+"diagnostics", "").body,
			c.req("shallot.v1.control.diagnostics", "").body} {
			conflict := gjson.GetBytes(body, `orderConflicts.#(type=="model")`)
			require.Equal(t, `["SubAgentInterceptor","ToolSelectionInterceptor"]`, conflict.Get("names").Raw, string(body))
			require.EqualValues(t, 70, conflict.Get("order").Int())
			tools := gjson.GetBytes(body, `orderConflicts.#(type=="tool")#`).Array()
			if gjson.GetBytes(body, `interceptors.#(stage=="large-result-eviction")`).Exists() {
				require.Len(t, tools, 1, "OC-1")
				require.Equal(t, `["CachingToolInterceptor","LargeResultEvictionInterceptor"]`, tools[0].Get("names").Raw, "OC-1")
			} else {
				require.Empty(t, tools)
			}
		}
		d := c.http("GET", one+debug+"diagnostics", "").body
		require.True(t, gjson.GetBytes(d, "routeFindings").IsArray())
		require.Empty(t, gjson.GetBytes(d, "stagesWithoutWorker").Array())
		require.Contains(t, gjson.GetBytes(d, "advice").Raw, "share an order", "S0-MGR-7")
	})
	t.Run("todo over HTTP", func(t *testing.T) {
		a := c.http("PUT", one+"/v1/todo/s1", `{"items":[{"title":"one"}]}`)
		require.Equal(t, 200, a.status, string(a.body))
		require.Equal(t, "PENDING", gjson.GetBytes(a.body, "items.0.status").String())
		a = c.http("GET", two+"/v1/todo/s1", "")
		require.Equal(t, "one", gjson.GetBytes(a.body, "items.0.title").String())
		require.JSONEq(t, string(a.body), string(c.req("shallot.v1.todo.get", "s1").body))
		require.Equal(t, 400, c.http("PUT", one+"/v1/todo/s1", `{"itmes":[]}`).status)
		require.Equal(t, 409, c.http("PUT", one+"/v1/todo/s1", `{"items":[],"revision":9}`).status)
		require.Equal(t, 405, c.http("DELETE", one+"/v1/todo/s1", "").status)
	})
}
