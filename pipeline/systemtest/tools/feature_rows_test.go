package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

const featureTools = `
    - {name: moded, executor: "go:script", effect: read, cache: "off", stages: {optional: [mode]}}
    - {name: cached, executor: "go:script", effect: read}
    - {name: limited, executor: "go:script", effect: read}
    - {name: again, executor: "go:script", effect: read, cache: "off"}
    - {name: strict, executor: "go:script", effect: read, cache: "off", input-schema: {type: object, required: [row],
        properties: {row: {type: string}, n: {type: integer}, fail: {type: integer}}}}
    - {name: never, executor: "go:script", effect: read, cache: "off", max-result: -1}
    - {name: pinned, version: "1.9", executor: "go:script", effect: read, cache: "off"}
    - {name: pinned, version: "1.10", executor: "go:echo", effect: read, cache: "off"}
    - {name: pinned, version: "1.10-rc.1", executor: "go:failing", effect: read, cache: "off"}
    - {name: written, executor: "go:script", effect: write, timeout: 60ms, check: get_order}
    - {name: get_order, executor: "go:echo", effect: read}
    - {name: keyed, executor: "go:script", effect: write, idempotency-key: native}
    - {name: unkeyed, executor: "go:script", effect: write}
    - {name: blank, executor: "go:echo", effect: read, allow-blank: [text], input-schema: {type: object,
        required: [text, name], properties: {text: {type: string}, name: {type: string}}}}
    - {name: asked, executor: "go:script", effect: read, approval: always}
    - {name: one_a, executor: "go:script", effect: read, cache: "off", concurrency-group: narrow}
    - {name: one_b, executor: "go:script", effect: read, cache: "off", concurrency-group: narrow}
    - {name: named, executor: "nats:rows.named", effect: read, cache: "off"}
`

// audited gathers the audit records of ended calls by call.
type audited struct {
	mu  sync.Mutex
	all map[string]gjson.Result
}

func (b *rowBus) audit(t *testing.T) *audited {
	t.Helper()
	a := &audited{all: map[string]gjson.Result{}}
	js, err := jetstream.New(b.Conn)
	require.NoError(t, err)
	records, err := js.OrderedConsumer(t.Context(), jet.AuditStream, jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	sub, err := records.Consume(func(m jetstream.Msg) {
		if r := gjson.ParseBytes(m.Data()); r.Get("event").String() == "end" {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.all[r.Get("call").String()] = r
		}
	})
	require.NoError(t, err)
	t.Cleanup(sub.Stop)
	return a
}

// end is the record of a call's end.
func (a *audited) end(t *testing.T, c *messages.Call) gjson.Result {
	t.Helper()
	var r gjson.Result
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		r = a.all[c.ID]
		return r.Exists()
	}, 30*time.Second, 5*time.Millisecond, "no audit record of %s %s", c.Tool, c.ID)
	return r
}

func times(c *messages.Call, hop string) (n int) {
	for _, p := range c.Slip.Path {
		if p == hop {
			n++
		}
	}
	return n
}

// TestFeatureRows shows the rows of the feature table that no case row shows, over the embedded bus.
func TestFeatureRows(t *testing.T) {
	t.Parallel()
	mode := pipeline.Stage{Name: "mode", Kind: messages.Tool, Order: 60, Reads: []string{"request"},
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			switch gjson.GetBytes(c.Request(), "mode").String() {
			case "change":
				c.SetRequest(rawjson.SetField(c.Request(), "say", []byte(`"changed"`)))
			case "answer":
				c.SetReply([]byte(`"mine"`))
				return pipeline.Answer(), nil
			case "throw":
				return pipeline.Verdict{}, errors.New("thrown")
			}
			return pipeline.Continue(), nil
		}}
	b := startRows(t, "tool-retry: {base-delay: 5ms}, rate-limit: {tools: {limited: {limit: 2, per: 1h}}}, "+
		"concurrency: {groups: {narrow: 1}}", "", featureTools, mode)
	a := b.audit(t)
	t.Run("rows", func(t *testing.T) {
		row := func(name string, f func(t *testing.T)) {
			t.Run(name, func(t *testing.T) { t.Parallel(); f(t) })
		}
		row("what the context of a call is reaches the tool (S2-PIPE-3 S2-DEF-1)", func(t *testing.T) {
			got := make(chan *nats.Msg, 1)
			sub, err := b.Conn.Subscribe("rows.named", func(m *nats.Msg) { got <- m; _ = m.Respond([]byte(`1`)) })
			require.NoError(t, err)
			defer func() { _ = sub.Unsubscribe() }()
			trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			m := ask(t, b.Conn, "shallot.v1.tool.request.named", `{"a":1}`, "Shallot-Session", "s1", "traceparent", trace)
			in := <-got
			require.Equal(t, []string{"named", "s1", m.Header.Get("Shallot-Call")}, []string{in.Header.Get("Shallot-Tool"),
				in.Header.Get("Shallot-Session"), in.Header.Get("Shallot-Call")})
			require.Contains(t, in.Header.Get("traceparent"), "0af7651916cd43dd8448eb211c80319c")
			require.Equal(t, `{"a":1}`, string(in.Data))
		})
		row("a tool stage passes on, changes, answers itself or fails (S2-CHAIN-1 S1-IF-4)", func(t *testing.T) {
			pass := b.do(t, "moded", `{"row":"S2-CHAIN-1 pass"}`)
			require.Equal(t, `{"run":1}`, string(pass.Reply()))
			require.Equal(t, `"changed"`, string(b.do(t, "moded", `{"row":"S2-CHAIN-1 change","mode":"change"}`).Reply()))
			own := b.do(t, "moded", `{"row":"S2-CHAIN-1 answer","mode":"answer"}`)
			require.Equal(t, `"mine"`, string(own.Reply()))
			require.False(t, a.end(t, own).Get("executorReached").Bool(), "S2-CHAIN-3")
			thrown := b.do(t, "moded", `{"row":"S2-CHAIN-1 throw","mode":"throw"}`)
			require.Contains(t, string(thrown.Reply())+fmt.Sprint(thrown.Fault), "mode")
			require.Equal(t, []int{1, 0, 0}, []int{b.count("S2-CHAIN-1 pass"), b.count("S2-CHAIN-1 answer"),
				b.count("S2-CHAIN-1 throw")})
		})
		// CH-14
		row("mandatory stages always run, and a hit says that the target was not reached (S2-CHAIN-2 S2-CHAIN-3 "+
			"S2-CACHE-4 X-6)", func(t *testing.T) {
			first, second := b.do(t, "cached", `{"row":"S2-CHAIN-3"}`), b.do(t, "cached", `{"row":"S2-CHAIN-3"}`)
			require.True(t, a.end(t, first).Get("executorReached").Bool())
			hit := a.end(t, second)
			require.False(t, hit.Get("executorReached").Bool(), hit.Raw)
			require.Equal(t, "hit", hit.Get("cache").String())
			require.Equal(t, []int{1, 1}, []int{times(second, "audit.beforeTool"), times(second, "audit.afterTool")}, "%v",
				second.Slip.Path)
			require.True(t, gjson.GetBytes(second.Notes["tool.metadata"], "from_cache").Bool())
			require.True(t, second.Flag("caching.tool.cacheHit"), "S0-CTX-2")
		})
		row("the header Shallot-Cache refreshes and bypasses (S0-CACHE-3 S0-CACHE-4)", func(t *testing.T) {
			run := func(header ...string) (answer, cache string) {
				m := ask(t, b.Conn, "shallot.v1.tool.request.cached", `{"row":"Shallot-Cache"}`, header...)
				return string(m.Data), m.Header.Get("Shallot-Cache")
			}
			for i, c := range []struct{ wish, answer, cache string }{
				{"", `{"run":1}`, "miss"}, {"", `{"run":1}`, "hit"}, {"use", `{"run":1}`, "hit"}, {"off", `{"run":2}`, ""},
				{"", `{"run":1}`, "hit"}, {"refresh", `{"run":3}`, "miss"}, {"", `{"run":3}`, "hit"},
			} {
				var header []string
				if c.wish != "" {
					header = []string{"Shallot-Cache", c.wish}
				}
				answer, cache := run(header...)
				require.Equal(t, []string{c.answer, c.cache}, []string{answer, cache}, "%d %s", i, c.wish)
			}
		})
		row("only successes are cached (S0-CACHE-5 CA-5)", func(t *testing.T) {
			args := `{"row":"S0-CACHE-5","fail":3,"with":"error result"}`
			m := ask(t, b.Conn, "shallot.v1.tool.request.cached", args)
			require.Equal(t, []string{`"no"`, "true"}, []string{string(m.Data), m.Header.Get("Shallot-Tool-Error")},
				"passed on unchanged")
			c := b.do(t, "cached", args)
			require.False(t, hit(c))
			require.Equal(t, `{"run":4}`, string(c.Reply()))
			require.True(t, hit(b.do(t, "cached", args)))
		})
		row("a cache hit uses no quota (S2-CHAIN-5 X-51)", func(t *testing.T) {
			for range 5 {
				require.Empty(t, fallback(b.do(t, "limited", `{"row":"S2-CHAIN-5"}`)))
			}
			require.Empty(t, fallback(b.do(t, "limited", `{"row":"S2-CHAIN-5","n":2}`)))
			c := b.do(t, "limited", `{"row":"S2-CHAIN-5","n":3}`)
			require.Equal(t, []any{2, ""}, []any{b.count("S2-CHAIN-5"), fallback(c)})
			require.Equal(t, messages.RateLimited, c.Fault.Code, "a refusal by a limit stays one")
			require.False(t, a.end(t, c).Get("executorReached").Bool())
			require.Equal(t, 0, times(c, "timeout.beforeTool"), "stages inner to who refused do not run")
		})
		row("mandatory stages run once a call, and another attempt runs all inner stages again (X-28 X-29 X-9 X-11 "+
			"S1-CAP-2 S1-IMPL-2)", func(t *testing.T) {
			c := b.do(t, "again", `{"row":"X-28","fail":2,"text":"x"}`)
			require.Nil(t, c.Fault)
			for hop, n := range map[string]int{
				"audit.beforeTool": 1, "audit.afterTool": 1, "tool-arguments.beforeTool": 1, "tool-retry.beforeTool": 1,
				"rate-limit.beforeTool": 3, "timeout.beforeTool": 3, "timeout.afterTool": 3, "tool-error.afterTool": 3,
				"tool-retry.afterTool": 3, "again": 0,
			} {
				if hop != "again" {
					require.Equal(t, n, times(c, hop), "%s in %v", hop, c.Slip.Path)
				}
			}
			require.Equal(t, []int{3, 3}, []int{b.count("X-28"), c.Slip.Tries}, "two retries are three attempts")
			require.Equal(t, 3, int(a.end(t, c).Get("attempts").Int()))
		})
		row("every further try is logged (S2-RETRY-8)", func(t *testing.T) {
			c := b.do(t, "again", `{"row":"S2-RETRY-8","fail":2,"text":"x"}`)
			for _, attempt := range []string{"2/3", "3/3"} {
				line := b.logged("tool failed and is tried again", c.ID, "attempt="+attempt)
				require.Contains(t, line, "tool=again")
				require.Contains(t, line, "delay=")
			}
		})
		row("faults of arguments name the argument and what is wrong, and are not tried again (S2-ARG-13 S2-ARG-15 "+
			"S2-ARG-1 S2-ARG-4)", func(t *testing.T) {
			c := b.do(t, "strict", `{"row":null,"n":"x"}`)
			require.Equal(t, `[["row","null_or_empty"]]`, pairs(c.Notes["tool.issues"]))
			c = b.do(t, "strict", `{"row":"S2-ARG-15","n":"x","fail":[]}`)
			require.Equal(t, `[["n","type_mismatch"],["fail","type_mismatch"]]`, pairs(c.Notes["tool.issues"]))
			require.Equal(t, []int{0, 0}, []int{c.Slip.Tries, b.count("S2-ARG-15")}, "never tried, so never again")
			require.Equal(t, "invalid_arguments", gjson.GetBytes(c.Reply(), "error").String())
			require.True(t, a.end(t, c).Exists(), "the audit has it too")
			c = b.do(t, "strict", `{"row":"S2-ARG-5","n":"7","more":1}`)
			require.Equal(t, `[{"path":"/n","from":"\"7\"","to":"7","rule":"to_integer"},{"path":"/more","from":"1",`+
				`"rule":"undeclared_dropped"}]`, string(c.Notes["tool.changes"]), "every change is recorded")
		})
		row("the tool is resolved before its arguments are read (X-38 X-32)", func(t *testing.T) {
			c := b.do(t, "not_there", `{"a":`)
			require.Equal(t, []string{"tool_not_found", "graceful_error"},
				[]string{gjson.GetBytes(c.Reply(), "error").String(), fallback(c)})
			require.False(t, a.end(t, c).Get("executorReached").Bool())
		})
		row("the graceful error is a success whose mark the model sees (X-35 X-34 S2-FALL-4)", func(t *testing.T) {
			m := ask(t, b.Conn, "shallot.v1.tool.request.again", `{"row":"X-35","fail":9,"text":"x"}`)
			require.Equal(t, []string{"", "", "graceful_error"}, []string{m.Header.Get("Nats-Service-Error-Code"),
				m.Header.Get("Shallot-Fault"), m.Header.Get("Shallot-Degraded")})
			require.Equal(t, "graceful_error", gjson.GetBytes(m.Data, "_shallot.fallback").String())
		})
		row("errors of tools look alike and hold no secrets (S1-IMPL-3)", func(t *testing.T) {
			secret := "sk-proj-0123456789abcdefghij"
			for with, tool := range map[string]string{"": "again", "tool_network": "cached"} {
				c := b.do(
					t, tool, `{"row":"S1-IMPL-3 `+tool+`","fail":9,"with":"`+with+`","text":"dial postgres://root:hunter22@db: `+
						`Authorization: Bearer `+secret+`"}`)
				all := string(c.Reply()) + string(rawjson.Encode(c.Notes["tool.fallbackFault"])) + a.end(t, c).Raw
				require.NotContains(t, all, secret)
				require.NotContains(t, all, "hunter22")
				require.Contains(t, all, "***")
			}
			require.NotContains(t, b.logs.String(), secret)
		})
		row("the tools that a model sees fit the conversation, and a tool has versions (S1-IMPL-4)", func(t *testing.T) {
			require.JSONEq(t, `{"row":"S1-IMPL-4"}`, string(b.do(t, "pinned", `{"row":"S1-IMPL-4"}`).Reply()),
				"1.10 is newer than 1.9 and 1.10-rc.1")
			require.Equal(t, `{"run":1}`, string(b.do(t, "pinned@1.9", `{"row":"S1-IMPL-4"}`).Reply()))
			require.Equal(t, `{"run":2}`, string(ask(t, b.Conn, "shallot.v1.tool.request."+messages.Token("pinned@1.9"),
				`{"row":"S1-IMPL-4"}`).Data))
			require.Equal(t, "tool_not_found", gjson.GetBytes(b.do(t, "pinned@3", `{}`).Reply(), "error").String())
		})
		row("eviction stands inside the cache (X-5 S0-EVICT-3)", func(t *testing.T) {
			args := `{"row":"X-5","text":"a","chars":85000}`
			first, second := b.do(t, "cached", args), b.do(t, "cached", args)
			require.True(t, hit(second))
			require.Equal(t, string(first.Reply()), string(second.Reply()))
			require.Less(t, len(second.Reply()), 1000)
			require.Len(t, b.whole(t, evictedPath(t, second)), 85000)
			require.Len(t, b.do(t, "never", `{"row":"X-5 never","text":"a","chars":85000}`).Reply(), 85002, "max-result -1")
		})
		row("an unknown outcome names its check; a key lets a tool run again", func(t *testing.T) {
			c := b.do(t, "written", `{"row":"written","ms":5000}`)
			require.Equal(t, messages.OutcomeUnknown, c.Fault.Code)
			require.Contains(t, c.Fault.Message, "get_order")
			b.do(t, "keyed", `{"row":"keyed","fail":1,"text":"x"}`)
			b.do(t, "unkeyed", `{"row":"unkeyed","fail":1,"text":"x"}`)
			b.ran(t, "written", 1)
			require.Equal(t, []int{2, 1}, []int{b.count("keyed"), b.count("unkeyed")}, "a tool that takes a key may run again")
		})
		row("allow-blank", func(t *testing.T) {
			require.Equal(t, `{"text":" ","name":"n"}`, string(b.do(t, "blank", `{"text":" ","name":"n"}`).Reply()))
			require.Equal(t, `[["name","null_or_empty"]]`,
				pairs(b.do(t, "blank", `{"text":"","name":" "}`).Notes["tool.issues"]))
		})
		row("approval", func(t *testing.T) {
			p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asked", Tenant: "default",
				Body: []byte(`{"row":"asked"}`)})
			require.NoError(t, err)
			_, err = p.Wait(t.Context(), nil)
			require.ErrorIs(t, err, pipeline.ErrHeld)
			require.Zero(t, b.count("asked"))
		})
		row("concurrency-group", func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					require.Empty(t, fallback(b.do(t, []string{"one_a", "one_b"}[i%2],
						fmt.Sprintf(`{"row":"narrow","ms":30,"i":%d}`, i))))
				})
			}
			wg.Wait()
			require.Equal(t, 8, b.count("narrow"))
			for _, gap := range b.gaps("narrow") {
				require.GreaterOrEqual(t, gap, 25*time.Millisecond, "one after the other, whichever tool of the group")
			}
		})
	})
	t.Run("cache and retry report their counts (S0-CACHE-8 S0-RETRY-7 S2-CACHE-1)", func(t *testing.T) {
		d := b.details("tool-cache")
		require.Equal(t, []any{int64(300000), 1000}, []any{d["ttlMs"], d["maxEntries"]})
		require.Positive(t, d["cacheHits"])
		d = b.details("tool-retry")
		require.Equal(t, 2, d["maxRetries"])
		require.Positive(t, d["totalRetries"])
		require.Positive(t, d["retriesExhausted"])
	})
}

// pairs are parameter and code of issues.
func pairs(issues json.RawMessage) string {
	out := [][2]string{}
	for _, i := range gjson.ParseBytes(issues).Array() {
		out = append(out, [2]string{i.Get("parameter").String(), i.Get("code").String()})
	}
	return string(rawjson.Encode(out))
}

// TestDeafTool: S2-TIME-5, X-42: a tool that does not listen holds its slot and not the clock.
func TestDeafTool(t *testing.T) {
	t.Parallel()
	b := startRows(t, "tool-fallback: {enabled: false}", "  executor: {core-pool: 1, max-pool: 1, queue-capacity: 4}\n",
		"    - {name: deaf, executor: \"go:script\", effect: read, cache: \"off\", retry: noRetry, timeout: 100ms}\n"+
			"    - {name: after, executor: \"go:script\", effect: read, cache: \"off\", retry: noRetry, timeout: 2s}\n")
	c := b.do(t, "deaf", `{"row":"S2-TIME-5","deaf":true}`)
	require.Equal(t, "Tool 'deaf' timed out after 100ms", c.Fault.Message, "S2-TIME-2")
	require.Eventually(t, func() bool { return b.busy.Load() == 1 }, 30*time.Second, time.Millisecond,
		"it still runs, in the only slot")
	p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "after",
		Body: []byte(`{"row":"S2-TIME-5 after"}`)})
	require.NoError(t, err)
	<-time.After(2500 * time.Millisecond) // simulated: the slot is taken for longer than the tool may take
	close(b.hold)
	c, err = p.Wait(t.Context(), nil)
	require.NoError(t, err)
	require.Nil(t, c.Fault, "waiting for a slot is not part of a tool's own time")
	require.Equal(t, 1, b.count("S2-TIME-5 after"))
}

// logged is the line that holds all of these.
func (b *rowBus) logged(words ...string) string {
	for line := range strings.Lines(b.logs.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return line
		}
	}
	return ""
}
