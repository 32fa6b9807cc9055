package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

const rowTools = `
    - {name: get_a, executor: "nats:rows.micro", effect: read}
    - {name: get_b, executor: "nats:rows.micro", effect: read}
    - {name: get_int, executor: "nats:rows.micro", effect: read, input-schema: {type: object,
        properties: {row: {type: string}, n: {type: integer}}}}
    - {name: get_long, executor: "nats:rows.micro", effect: read, cache: 1h}
    - {name: get_shared, executor: "nats:rows.micro", effect: read, cache: {scope: shared}}
    - {name: create_x, executor: "nats:rows.micro"}
    - {name: update_x, executor: "nats:rows.micro"}
    - {name: delete_x, executor: "nats:rows.micro"}
    - {name: retried, executor: "go:script", effect: read, cache: "off"}
    - {name: none, executor: "go:script", effect: read, cache: "off", retry: noRetry}
    - {name: none_slow, executor: "go:script", effect: read, cache: "off", retry: noRetry, timeout: 60ms}
    - {name: network, executor: "go:script", effect: read, cache: "off", retry: {max-attempts: 3, base-delay: 5ms,
        on: [tool_timeout, tool_network, target_absent]}}
    - {name: network_slow, executor: "go:script", effect: read, cache: "off", timeout: 60ms, retry: {max-attempts: 2,
        base-delay: 5ms, on: [tool_timeout, tool_network]}}
    - {name: slow3, executor: "go:script", effect: read, cache: "off", timeout: 100ms, retry: {max-attempts: 3,
        base-delay: 5ms, on: [any]}}
    - {name: safe, executor: "go:script", effect: read, cache: "off", retry: idempotentSafeRetry}
    - {name: patient, executor: "go:script", effect: read, cache: "off", retry: {max-attempts: 2, base-delay: 20s,
        multiplier: 1, on: [any]}}
    - {name: asks, executor: "go:script", effect: read, cache: "off", stages: {optional: [asker]}}
    - {name: asks_a_person, executor: "go:script", effect: read, cache: "off", approval: always,
        retry: {max-attempts: 3, base-delay: 5ms, on: [any]}}
    - {name: strict, executor: "go:script", effect: read, input-schema: {type: object,
        properties: {row: {type: string}, n: {type: integer}}, required: [n]}, stub-data: {n: 0}}
    - {name: stubbed, executor: "go:script", effect: read, cache: "off", retry: noRetry,
        stub-data: {note: "sample data"}}
    - {name: stale, executor: "go:script", effect: read, cache: 1ms, retry: noRetry}
    - {name: timed, executor: "go:script", effect: read, cache: "off", retry: noRetry, timeout: 100ms}
    - {name: big, executor: "go:script", effect: read, cache: "off"}
    - {name: low, executor: "go:script", effect: read, cache: "off", max-result: 1000}
`

// staleTime is how long an earlier success may stand in.
const staleTime = 4 * time.Second

// TestRows runs the case rows of the cache, the retries, the time limits, the ladder and the eviction over the
// embedded bus, through the default tool chain.
func TestRows(t *testing.T) {
	t.Parallel()
	asker := pipeline.Stage{Name: "asker", Kind: messages.Tool, Order: 60,
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if _, ok := c.Notes["hold.answer"]; ok {
				return pipeline.Continue(), nil
			}
			return pipeline.Hold(json.RawMessage(`{"may":"I?"}`)), nil
		}}
	b := startRows(t, "tool-retry: {base-delay: 40ms}", "  fallback: {stale-ttl: "+staleTime.String()+"}\n", rowTools,
		asker)
	t.Run("rows", func(t *testing.T) {
		cacheRows(t, b)
		retryRows(t, b)
		policyRows(t, b)
		timeRows(t, b)
		ladderRows(t, b)
		evictionRows(t, b, "")
	})
}

func cacheRows(t *testing.T, b *rowBus) {
	two := func(name, toolA, argsA, toolB, argsB string, runs int) {
		row := gjson.Get(argsA, "row").String()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := b.do(t, toolA, argsA)
			second := b.do(t, toolB, argsB)
			require.Equal(t, runs, b.count(row), "%v %v", first.Fault, second.Fault)
			require.Equal(t, runs == 1, hit(second))
			if runs == 1 {
				require.Equal(t, string(first.Reply()), string(second.Reply()))
			}
		})
	}
	two("the same call twice runs the tool once and counts one hit and one miss (CA-1)", "get_a", `{"row":"CA-1"}`,
		"get_a", `{"row":"CA-1"}`, 1)
	two("arguments in another order are the same call (CA-2)", "get_a", `{"row":"CA-2","a":1,"b":2}`, "get_a",
		`{"b":2,"a":1,"row":"CA-2"}`, 1)
	two("nested arguments in another order are the same call (CA-3)", "get_a",
		`{"row":"CA-3","o":{"x":1,"y":{"p":1,"q":[1]}}}`, "get_a", `{"o":{"y":{"q":[1],"p":1},"x":1},"row":"CA-3"}`, 1)
	two("another tool is another call (CA-4)", "get_a", `{"row":"CA-4"}`, "get_b", `{"row":"CA-4"}`, 2)
	two("a failure is not kept (CA-5)", "get_a", `{"row":"CA-5","fail":3,"text":"x"}`, "get_a",
		`{"row":"CA-5","fail":3,"text":"x"}`, 4)
	two("create_x is not cached (CA-9)", "create_x", `{"row":"CA-9 create_x"}`, "create_x", `{"row":"CA-9 create_x"}`, 2)
	two("update_x is not cached (CA-9)", "update_x", `{"row":"CA-9 update_x"}`, "update_x", `{"row":"CA-9 update_x"}`, 2)
	two("delete_x is not cached (CA-9)", "delete_x", `{"row":"CA-9 delete_x"}`, "delete_x", `{"row":"CA-9 delete_x"}`, 2)
	two("arguments that are read alike are the same call (CA-14)", "get_int", `{"row":"CA-14","n":3}`, "get_int",
		`{"row":"CA-14","n":"3"}`, 1)
	t.Run("tenants do not share results unless the tool says so (CA-15)", func(t *testing.T) {
		t.Parallel()
		for _, tool := range []string{"get_a", "get_shared"} {
			b.do(t, tool, `{"row":"CA-15 `+tool+`"}`, tenant("one"))
			b.do(t, tool, `{"row":"CA-15 `+tool+`"}`, tenant("two"))
		}
		require.Equal(t, 2, b.count("CA-15 get_a"))
		require.Equal(t, 1, b.count("CA-15 get_shared"))
	})
}

func retryRows(t *testing.T, b *rowBus) {
	t.Run("two failures and a success are three runs with growing pauses (RT-1)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "retried", `{"row":"RT-1","fail":2,"text":"x"}`)
		require.Nil(t, c.Fault)
		require.Equal(t, []any{3, 3, ""}, []any{b.count("RT-1"), c.Slip.Tries, fallback(c)})
		gaps := b.gaps("RT-1")
		require.GreaterOrEqual(t, gaps[0], 40*time.Millisecond)
		require.GreaterOrEqual(t, gaps[1], 80*time.Millisecond)
		for attempt, ms := range map[string]int64{"1": 40, "2": 80} { // the decisions can be read by people
			e, err := b.kv(t, jet.RetryBucket).Get(t.Context(), messages.Key("default", c.ID, "tool-retry", attempt))
			require.NoError(t, err)
			r := gjson.ParseBytes(e.Value())
			require.Equal(t, []any{int64(3), ms, "tool_error"},
				[]any{r.Get("max").Int(), r.Get("delayMs").Int(), r.Get("lastCode").String()}, r.Raw)
		}
	})
	t.Run("after the last attempt a stand-in answers, and the last error is counted (RT-2 RP-8)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "retried", `{"row":"RT-2","fail":9,"text":"the last words"}`)
		require.Equal(t, 3, b.count("RT-2"))
		require.False(t, c.Flag(messages.NoteShouldRetry))
		require.Equal(t, "graceful_error", fallback(c))
		require.Contains(t, string(c.Notes["tool.fallbackFault"]), "All 3 attempts failed")
		require.Contains(t, string(c.Notes["tool.fallbackFault"]), "the last words")
		require.GreaterOrEqual(t, b.details("tool-retry")["retriesExhausted"], int64(1))
	})
	t.Run("a success does not wait (RT-3)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "retried", `{"row":"RT-3"}`)
		require.Equal(t, 1, b.count("RT-3"))
		require.False(t, c.Flag(messages.NoteShouldRetry))
	})
	t.Run("a caller that leaves during a pause ends the call at once (RT-9)", func(t *testing.T) {
		t.Parallel()
		p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "patient",
			Body: []byte(`{"row":"RT-9","fail":9,"text":"x"}`)})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return b.count("RT-9") == 1 }, 30*time.Second, time.Millisecond)
		begin := time.Now()
		p.Leave()
		c, err := p.Wait(t.Context(), nil)
		require.NoError(t, err)
		if c.Fault != nil { // else the caller left before the wait had begun
			require.Equal(t, messages.Cancelled, c.Fault.Code)
		}
		require.Less(t, time.Since(begin), 18*time.Second, "the wait is 20 s")
		require.Equal(t, 1, b.count("RT-9"))
	})
	t.Run("a tool that waits for a person is not tried again (RT-10)", func(t *testing.T) {
		t.Parallel()
		p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asks", Tenant: "default",
			Body: []byte(`{"row":"RT-10"}`)})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return b.Node.Answer(t.Context(), "default", p.ID(),
				json.RawMessage(`"yes"`)) == nil
		}, 30*time.Second, 5*time.Millisecond)
		c, err := b.Entry().Result(t.Context(), "default", p.ID()) // whoever asked was told that it is held
		require.NoError(t, err)
		require.Nil(t, c.Fault)
		require.Equal(t, []int{1, 1}, []int{b.count("RT-10"), c.Slip.Tries})
	})
	t.Run("one yes is for all attempts (RT-10)", func(t *testing.T) {
		t.Parallel()
		p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asks_a_person",
			Tenant: "default", Body: []byte(`{"row":"RT-10 approved","fail":2,"with":"tool_network"}`)})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return b.Approvals.Decide(t.Context(), "default", p.ID(), json.RawMessage(`"approve"`), "ann") == nil
		}, 30*time.Second, 5*time.Millisecond)
		var c *messages.Call
		require.Eventually(t, func() bool { c, err = b.Entry().Result(t.Context(), "default", p.ID()); return err == nil },
			30*time.Second, 5*time.Millisecond)
		require.Nil(t, c.Fault)
		require.Equal(t, []int{3, 3}, []int{b.count("RT-10 approved"), c.Slip.Tries},
			"suspended, not retried; then one yes for all attempts")
		require.Equal(t, 2, strings.Count(strings.Join(c.Slip.Path, " "), "approval.beforeTool"), "asked once, gone on once")
	})
}

func policyRows(t *testing.T, b *rowBus) {
	for row, r := range map[string]struct {
		tool, args string
		runs       int
		mark       string
	}{
		"a tool without retry that times out ran once (RP-1)": {"none_slow", `"ms":5000`, 1, "graceful_error"},
		"the network policy makes three runs and not four (RP-2)": {"network",
			`"fail":2,"with":"tool_network","text":"x"`, 3, ""},
		"an error of the business is not one of the network (RP-3)": {"network",
			`"fail":9,"with":"tool_error","text":"x"`, 1, "graceful_error"},
		"the idempotent policy makes two runs, with its own pauses (RP-4)": {"safe",
			`"fail":9,"with":"tool_error","text":"x"`, 2, "graceful_error"},
		"a tool's own policy beats the default (RP-5)": {"none", `"fail":9,"with":"tool_network","text":"x"`, 1,
			"graceful_error"},
		"a timeout of an idempotent tool is tried again (RP-6)": {"network_slow", `"ms":5000`, 2, "graceful_error"},
		"wrong arguments run nothing and are named (RP-7)":      {"strict", `"n":"many"`, 0, "graceful_error"},
		"a tool that is not there runs nothing (RP-9)":          {"nowhere", `"n":1`, 0, "graceful_error"},
		"a panic is not tried again (RP-9)": {"none", `"fail":9,"with":"panic","text":"x"`, 1,
			"graceful_error"},
		"an error result is tried again (S2-RETRY-1)": {"retried", `"fail":1,"with":"error result"`, 2, ""},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			c := b.do(t, r.tool, `{"row":"`+row+`",`+r.args+`}`)
			require.Nil(t, c.Fault)
			b.ran(t, row, r.runs)
			require.Equal(t, r.mark, fallback(c), "%s", c.Reply())
			if r.tool == "strict" {
				require.Equal(t, "invalid_arguments", gjson.GetBytes(c.Reply(), "error").String())
			}
		})
	}
}

func timeRows(t *testing.T, b *rowBus) {
	t.Run("a slow tool fails soon after its limit and says so (TO-1)", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		c := b.do(t, "timed", `{"row":"TO-1","ms":600000}`)
		require.Contains(t, string(c.Reply()), "Tool 'timed' timed out after 100ms")
		require.Less(t, time.Since(begin), 50*time.Second)
	})
	t.Run("after many timeouts no worker is lost (TO-4)", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { b.do(t, "timed", fmt.Sprintf(`{"row":"TO-4","ms":60000,"i":%d}`, i)) })
		}
		wg.Wait()
		b.ran(t, "TO-4", 100)
		require.Eventually(t, func() bool { return b.running("TO-4") == 0 }, 30*time.Second, time.Millisecond,
			"the work is a minute long and watches cancellation")
	})
	t.Run("attempts with limits end in a bounded time together (TO-6)", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		c := b.do(t, "slow3", `{"row":"TO-6","ms":600000}`)
		b.ran(t, "TO-6", 3)
		require.Equal(t, "graceful_error", fallback(c))
		require.Less(t, time.Since(begin), 50*time.Second)
	})
	t.Run("of parallel calls a slow one does not spoil the others (TO-8)", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		got := make([]string, 3)
		for i, ms := range []int{1, 20000, 1} {
			wg.Go(func() {
				c := b.do(t, "timed", fmt.Sprintf(`{"row":"TO-8 %d","ms":%d,"say":{"i":%d}}`, i, ms, i))
				got[i] = string(c.Reply())
			})
		}
		wg.Wait()
		require.Equal(t, []string{`{"i":0}`, `{"i":2}`}, []string{got[0], got[2]})
		require.Contains(t, got[1], "timed out")
	})
	for tool, want := range map[string]int64{"search_a gets the limit of its prefix (TO-2)": 10000,
		"create_a gets the limit of its prefix (TO-2)": 30000, "other_a gets the default limit (TO-2)": 15000,
		"search_b gets its own limit (TO-3)": 3000} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			name, _, _ := strings.Cut(tool, " ")
			own := ""
			if name == "search_b" {
				own = `,"timeout":"3s"`
			}
			i, err := b.Tools.RegisterTool(t.Context(), []byte(`{"name":"`+name+`","executor":"go:script"`+own+`}`), "me")
			require.NoError(t, err)
			require.Equal(t, want, i.Policy.TimeoutMs)
			require.Nil(t, b.do(t, name, `{"row":"`+tool+`"}`).Fault)
		})
	}
}

func ladderRows(t *testing.T, b *rowBus) {
	t.Run("an earlier success of the same call stands in until it is too old (F3-1 F3-7 F3-8 F3-12)", func(t *testing.T) {
		t.Parallel()
		row := ""
		args := func(x int) string { return fmt.Sprintf(`{"row":%q,"x":%d}`, row, x) }
		var c *messages.Call
		for took := staleTime; took >= staleTime; { // a busy machine may take so long that the success is too old by then
			row += "F3-1"
			begin := time.Now()
			c = b.do(t, "stale", args(1))
			require.Equal(t, []any{`{"run":1}`, ""}, []any{string(c.Reply()), fallback(c)}, "F3-12")
			b.mu.Lock()
			b.broken[row] = true
			b.mu.Unlock()
			// Until the cached result is too old it is a hit and nothing has to stand in for it.
			require.Eventually(t,
				func() bool { c = b.do(t, "stale", args(1)); return fallback(c) != "" }, 30*time.Second, time.Millisecond)
			took = time.Since(begin)
		}
		require.Equal(t, "stale_cache", fallback(c), "F3-1")
		require.Equal(t, "stale_cache", gjson.GetBytes(c.Reply(), "_shallot.fallback").String(), "F3-10")
		require.Equal(t, int64(1), gjson.GetBytes(c.Reply(), "run").Int())
		require.Equal(t, "graceful_error", fallback(b.do(t, "stale", args(2))), "F3-8")
		require.Eventually(t, func() bool { return fallback(b.do(t, "stale", args(1))) == "graceful_error" }, 30*time.Second,
			100*time.Millisecond, "F3-7")
	})
	t.Run("declared data stands in, marked and not cached (F3-2 F3-10 F3-11)", func(t *testing.T) {
		t.Parallel()
		for range 2 {
			c := b.do(t, "stubbed", `{"row":"F3-2","fail":9,"text":"x"}`)
			require.Equal(t, `{"note":"sample data","_shallot":{"fallback":"stub_data"}}`, string(c.Reply()))
			require.Equal(t, "stub_data", gjson.GetBytes(c.Notes["tool.metadata"], "fallback").String(), "%s", c.Notes)
			require.False(t, hit(c), "F3-11")
		}
		require.Equal(t, 2, b.count("F3-2"))
	})
	for row, r := range map[string]struct{ tool, args, class, suggestion string }{
		"without either the graceful error answers (F3-3)": {"none", `"fail":9,"text":"broken"`,
			"internal_error", "系统暂时不可用,请稍后再试"},
		"a timeout is named by its class (F3-4)": {"none_slow", `"ms":9000`, "timeout",
			"请稍后重试,或简化查询条件"},
		"wrong arguments are named by their class (F3-4)": {"strict", `"n":"x"`, "invalid_arguments",
			"请检查参数格式和类型后重试"},
		"wrong arguments get the graceful error and not the declared data (F3-9)": {"strict", `"n":[]`, "invalid_arguments",
			"请检查参数格式和类型后重试"},
		"an unknown tool is named by its class (F3-4)": {"not_there", `"n":1`, "tool_not_found",
			"系统暂时不可用,请稍后再试"},
		"a broken connection is named by its class (F3-4)": {"none", `"fail":9,"with":"tool_network","text":"x"`,
			"network_error", "系统暂时不可用,请稍后再试"},
		"an error without words has an empty message (F3-6)": {"none", `"fail":9,"text":""`, "internal_error",
			"系统暂时不可用,请稍后再试"},
	} {
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			c := b.do(t, r.tool, `{"row":"`+row+`",`+r.args+`}`)
			g := gjson.ParseBytes(c.Reply())
			require.Equal(t, []string{r.class, r.tool, r.suggestion, "graceful_error"},
				[]string{g.Get("error").String(), g.Get("tool").String(), g.Get("suggestion").String(),
					g.Get("_shallot.fallback").String()}, g.Raw)
			require.Equal(t, gjson.String, g.Get("message").Type)
		})
	}
	t.Run("any character in a message comes back whole (F3-5)", func(t *testing.T) {
		t.Parallel()
		text := "a \" b \\ c \n d \u0001"
		c := b.do(t, "none", `{"row":"F3-5","fail":9,"text":`+string(rawjson.Encode(text))+`}`)
		require.True(t, json.Valid(c.Reply()))
		require.Contains(t, gjson.GetBytes(c.Reply(), "message").String(), text)
	})
}
