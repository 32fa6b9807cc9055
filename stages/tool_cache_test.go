package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

func TestToolCacheHits(t *testing.T) {
	t.Parallel()
	integer := reading("x")
	integer.InputSchema = tool.JSON(`{"properties":{"n":{"type":"integer"}},"additionalProperties":true}`)
	shared := reading("x")
	shared.Cache = &tool.Cache{Scope: tool.ScopeShared}
	session := reading("x")
	session.Cache = &tool.Cache{Scope: tool.ScopeSession}
	undeclared := tool.Definition{Name: "x"}
	email := tool.Definition{Name: "send_email", Policy: tool.Policy{Effect: tool.EffectExternal}}
	cached := tool.Definition{Name: "create_x", Policy: tool.Policy{Cache: &tool.Cache{}}}
	type in struct{ args, tenant, session, wish string }
	for name, row := range map[string]struct {
		def    tool.Definition
		a, b   in
		runs   int
		result any
	}{
		"same call (CA-1)": {def: reading("x"), a: in{args: `{"a":1}`}, b: in{args: `{"a":1}`}, runs: 1},
		"text (CA-1)": {def: reading("x"), a: in{args: `{}`}, b: in{args: `{}`}, runs: 1,
			result: "plain text"},
		"other order (CA-2)": {def: reading("x"), a: in{args: `{"a":1,"b":2}`}, b: in{args: `{"b":2,"a":1}`},
			runs: 1},
		"nested (CA-3)": {def: reading("x"), a: in{args: `{"o":{"p":[{"a":1,"b":2}]}}`},
			b: in{args: `{"o":{"p":[{"b":2,"a":1.0}]}}`}, runs: 1},
		"other values (X-24)": {def: reading("x"), a: in{args: `{"a":9007199254740992}`},
			b: in{args: `{"a":9007199254740993}`}, runs: 2},
		"parsed (CA-14)":              {def: integer, a: in{args: `{"n":3}`}, b: in{args: `{"n":"3"}`}, runs: 1},
		"two tenants (CA-15)":         {def: reading("x"), a: in{tenant: "a"}, b: in{tenant: "b"}, runs: 2},
		"shared (CA-15)":              {def: shared, a: in{tenant: "a"}, b: in{tenant: "b"}, runs: 1},
		"session scope":               {def: session, a: in{session: "s"}, b: in{session: "s"}, runs: 1},
		"session scope, two sessions": {def: session, a: in{session: "s"}, b: in{session: "r"}, runs: 2},
		"no session":                  {def: session, runs: 2},
		"undeclared":                  {def: undeclared, runs: 2},
		"undeclared, a reading name":  {def: tool.Definition{Name: "get_x"}, runs: 1},
		"send_email (X-25)":           {def: email, runs: 2},
		"declared cacheable (X-25)":   {def: cached, runs: 1},
		"wish off":                    {def: reading("x"), b: in{wish: "off"}, runs: 2},
		"wish refresh":                {def: reading("x"), b: in{wish: "refresh"}, runs: 2},
		"create (CA-9)":               {def: tool.Definition{Name: "create_x"}, runs: 2},
		"update (CA-9)":               {def: tool.Definition{Name: "update_x"}, runs: 2},
		"delete (CA-9)":               {def: tool.Definition{Name: "delete_x"}, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := row.result
			if result == nil {
				result = map[string]any{"v": 1}
			}
			c := newToolChain(t, stages.Deps{}, nil, gives(row.def, result))
			send := func(in in) *messages.Call {
				if in.args == "" {
					in.args = `{}`
				}
				call := toolCall(row.def.Name, in.args)
				call.Session, call.Cache = in.session, in.wish
				if in.tenant != "" {
					call.Tenant = in.tenant
				}
				return c.Call(t, t.Context(), call)
			}
			first, second := send(row.a), send(row.b)
			require.Nil(t, first.Fault)
			require.Nil(t, second.Fault)
			require.Equal(t, string(first.Reply()), string(second.Reply()))
			_, text1 := first.ReplyText()
			_, text2 := second.ReplyText()
			require.Equal(t, text1, text2)
			require.Equal(t, row.runs, c.Runs(row.def.Name))
			require.NotEqual(t, "hit", note[string](second, "modelCache"))
			require.Equal(t, row.runs == 1, second.Flag(messages.NoteCacheHit), "S0-CTX-2")
			require.Equal(t, row.runs == 1, metadata(t, second)["from_cache"] == true, "S2-CACHE-4")
		})
	}
	t.Run("other tool (CA-4)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), `1`), gives(reading("y"), `2`))
		require.Equal(t, "1", string(c.Run(t, "x", `{}`).Reply()))
		require.Equal(t, "2", string(c.Run(t, "y", `{}`).Reply()))
	})
}

func TestToolCacheStoresOnlySuccess(t *testing.T) {
	t.Parallel()
	none := tool.NoRetry()
	def := reading("x")
	def.Retry = &none
	stub := def
	stub.StubData = tool.JSON(`{"sample":true}`)
	for name, x := range map[string]chainTool{
		"fault (CA-5)":         gives(def, errors.New("boom")),
		"error result (CA-5)":  gives(def, toolbox.Result{Content: []byte(`{"no":1}`), IsError: true}),
		"stub or JSON (F3-11)": gives(stub, errors.New("boom")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newToolChain(t, stages.Deps{}, nil, x)
			c.Run(t, "x", `{}`)
			c.Run(t, "x", `{}`)
			require.Equal(t, 2, c.Runs("x"))
			keys, err := c.Deps.Store("cache").Keys(t.Context(), "")
			require.NoError(t, err)
			require.Empty(t, keys, "neither a result, nor a stale one, nor a mark stays")
		})
	}
}

func TestToolCacheTime(t *testing.T) {
	t.Parallel()
	long := reading("long")
	long.Cache = &tool.Cache{TTL: tool.Duration(time.Hour)}
	synctest.Test(t, func(t *testing.T) {
		c := newToolChain(t, stages.Deps{}, map[string]string{"tool-fallback": "off"}, gives(reading("x"), `1`),
			gives(long, `1`))
		s := c.stage(t, "tool-cache")
		details := func() map[string]any { return s.Details(t.Context()) }
		require.Equal(t, map[string]any{"cacheSize": 0, "cacheHits": int64(0), "cacheMisses": int64(0), "hitRate": 0.0,
			"ttlMs": int64(300000), "maxEntries": 1000}, details(), "(CA-11 S0-CACHE-8)")
		run := func(name string) bool { return c.Plain(t, toolCall(name, `{}`)).Flag(messages.NoteCacheHit) }
		require.False(t, run("x"))
		<-time.After(5*time.Minute - time.Nanosecond)
		require.True(t, run("x"))
		<-time.After(time.Nanosecond)
		require.Equal(t, 0, details()["cacheSize"])
		require.False(t, run("x"), "age exactly TTL (CA-6)")
		require.False(t, run("long"))
		<-time.After(6 * time.Minute)
		require.True(t, run("long"), "CA-16")
		require.NoError(t, s.Sweep(t.Context()))
		require.Equal(t, 1, details()["cacheSize"], "the expired one is gone (CA-7)")
		require.Equal(t, time.Minute, s.SweepEvery, "S0-CACHE-6")
	})
}

// forgetful is a store that never ends an entry by itself, as a bucket without times for single keys would.
type forgetful struct{ pipeline.Memory }

func (f *forgetful) Put(
	ctx context.Context, key string, v []byte, _ time.Duration, when pipeline.Condition,
) (uint64, error) {
	return f.Memory.Put(ctx, key, v, 0, when)
}

func TestToolCacheDropsOldEntriesItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newToolChain(t, depsWith(&forgetful{}), map[string]string{"tool-fallback": "off"}, gives(reading("x"), `1`))
		s := c.stage(t, "tool-cache")
		c.Plain(t, toolCall("x", `{"a":1}`))
		c.Plain(t, toolCall("x", `{"a":2}`))
		<-time.After(5 * time.Minute)
		require.Equal(t, 2, s.Details(t.Context())["cacheSize"])
		call := toolCall("x", `{"a":1}`)
		call.Slip = messages.Slip{Stops: []messages.Stop{s.Stop()}}
		pipeline.Start(call)
		_, err := s.Before(t.Context(), call)
		require.NoError(t, err)
		require.Equal(t, 1, s.Details(t.Context())["cacheSize"], "removed by the look-up (CA-6)")
		require.NoError(t, s.Sweep(t.Context()))
		require.Equal(t, 0, s.Details(t.Context())["cacheSize"], "removed by the sweep (CA-7)")
	})
}

func TestToolCacheCounters(t *testing.T) {
	t.Parallel()
	c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), `1`))
	for i := range 156 + 89 {
		c.Plain(t, toolCall("x", fmt.Sprintf(`{"i":%d}`, i%89)))
	}
	d := c.stage(t, "tool-cache").Details(t.Context())
	require.Equal(t, []any{int64(156), int64(89), 0.637, 89},
		[]any{d["cacheHits"], d["cacheMisses"], d["hitRate"], d["cacheSize"]}, "CA-12")
	for i := range 1001 {
		c.Plain(t, toolCall("x", fmt.Sprintf(`{"j":%d}`, i)))
	}
	require.LessOrEqual(t, c.stage(t, "tool-cache").Details(t.Context())["cacheSize"], 1000, "CA-13")
}

func TestToolCacheRunsEqualCallsOnce(t *testing.T) {
	t.Parallel()
	slow := func(err error) chainTool {
		none, def := tool.NoRetry(), reading("x")
		def.Retry = &none
		return chainTool{def, func(context.Context, int, json.RawMessage) (toolbox.Result, error) {
			<-time.After(time.Second)
			return toolbox.Result{Content: []byte(`{"v":1}`)}, err
		}}
	}
	for name, row := range map[string]struct {
		tool  chainTool
		calls int
		runs  int
		took  time.Duration
	}{
		"one runs, the others wait for it": {slow(nil), 240, 1, 2 * time.Second},
		"each waits once, then runs":       {slow(errors.New("boom")), 20, 20, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newToolChain(t, stages.Deps{}, nil, row.tool)
				begin := time.Now()
				var wg sync.WaitGroup
				for i := range row.calls {
					wg.Go(func() {
						call := toolCall("x", `{"a":1}`)
						if i%2 == 1 {
							call.Deadline = time.Now().Add(5 * time.Second) // some have less patience; the others keep theirs
						}
						c.Plain(t, call)
					})
				}
				wg.Wait()
				require.Equal(t, row.runs, c.Runs("x"))
				require.LessOrEqual(t, time.Since(begin), row.took)
			})
		})
	}
	t.Run("a dead leader holds nobody up for long", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			def := reading("x")
			def.Timeout = tool.Duration(3 * time.Second)
			c := newToolChain(t, stages.Deps{}, nil, gives(def, `1`))
			s := c.stage(t, "tool-cache")
			dead := toolCall("x", `{}`)
			dead.Slip.Stops = []messages.Stop{s.Stop()}
			pipeline.Start(dead)
			_, err := s.Before(t.Context(), dead)
			require.NoError(t, err)
			begin := time.Now()
			require.Nil(t, c.Plain(t, toolCall("x", `{}`)).Fault)
			require.LessOrEqual(t, time.Since(begin), 6*time.Second)
			short := toolCall("x", `{}`)
			short.Cache, short.Deadline = "refresh", time.Now().Add(time.Second)
			require.Nil(t, c.Plain(t, short).Fault)
		})
	})
}

func TestToolCacheFailsOpen(t *testing.T) {
	t.Parallel()
	c := newToolChain(t, stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}, nil,
		gives(reading("x"), `{"v":1}`))
	for range 2 {
		out := c.Run(t, "x", `{}`)
		require.Equal(t, `{"v":1}`, string(out.Reply()))
	}
	require.Equal(t, 2, c.Runs("x"))
}
