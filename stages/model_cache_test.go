package stages_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func TestModelCacheKey(t *testing.T) {
	t.Parallel()
	const base = `{"model":"p","temperature":1,"messages":[{"role":"user","content":"hi"}]}`
	for name, tc := range map[string]struct {
		second string
		tenant string
		calls  int
	}{
		"same":                    {base, "t1", 1},
		"other key order (CA-2)":  {`{"messages":[{"content":"hi","role":"user"}],"temperature":1.0,"model":"p"}`, "t1", 1},
		"streamed":                {`{"stream":true,"stream_options":{"include_usage":true},` + base[1:], "t1", 1},
		"other temperature":       {strings.Replace(base, ":1,", ":1.1,", 1), "t1", 2},
		"other model":             {strings.Replace(base, `"p"`, `"q"`, 1), "t1", 2},
		"unknown field counts":    {`{"x":1,` + base[1:], "t1", 2},
		"seeds above 2^53 differ": {`{"seed":9007199254740993,` + base[1:], "t1", 2},
		"another tenant (CA-15)":  {base, "t2", 2},
		"tool definitions":        {`{"tools":[],` + base[1:], "t1", 2},
		"content parts, not string": {
			`{"model":"p","temperature":1,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`, "t1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply := []byte(usageReply + `},"x":9007199254740993,"y":"<&>"}`)
			script := &harnessScript{Lines: map[string][]any{"p": {reply}, "q": {reply}}}
			s := harnessModel(t, "model-cache", "enabled: true", harnessDeps())
			h := &harness{Stages: []pipeline.Stage{s}, Target: script}
			c := h.Call(t, context.Background(), harnessCall(base))
			require.Equal(t, `"miss"`, string(c.Notes["modelCache"]))
			second := messages.NewCall(messages.Model, tc.tenant, []byte(tc.second))
			c = h.Call(t, context.Background(), second)
			require.Len(t, script.Asked, tc.calls)
			require.Equal(t, string(reply), string(c.Reply()), "byte for byte")
			if tc.calls == 1 {
				require.Equal(t, `"hit"`, string(c.Notes["modelCache"]))
				require.False(t, c.Flag(messages.NoteExecutorReached))
			}
		})
	}
	seed := func(n string) *messages.Call { return harnessCall(`{"seed":` + n + `,` + base[1:]) }
	script := &harnessScript{Lines: map[string][]any{"p": {"a"}}}
	h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "", harnessDeps())}, Target: script}
	h.Call(t, context.Background(), seed("9007199254740993"))
	h.Call(t, context.Background(), seed("9007199254740992"))
	require.Len(t, script.Asked, 2)
}

func TestModelCacheStores(t *testing.T) {
	t.Parallel()
	choice := func(content, finish string) []byte {
		return fmt.Appendf(nil, `{"choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":%s}]}`,
			content, finish)
	}
	toolOnly := []byte(`{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c",` +
		`"type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`)
	second := []byte(`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"},{"message":{"content":"b"},` +
		`"finish_reason":"length"}]}`)
	for name, tc := range map[string]struct {
		line  any
		calls int
	}{
		"a fault (CA-5)":        {providerFault(messages.ProviderError), 2},
		"empty":                 {choice(`""`, `"stop"`), 2},
		"cut by length":         {choice(`"a"`, `"length"`), 2},
		"not finished":          {choice(`"a"`, `null`), 2},
		"filtered":              {choice(`"a"`, `"content_filter"`), 2},
		"one of two cut (n2)":   {second, 2},
		"no JSON":               {[]byte("<html>"), 2},
		"whole":                 {choice(`"a"`, `"stop"`), 1},
		"tool calls only":       {toolOnly, 1},
		"content as text parts": {choice(`[{"type":"text","text":"a"}]`, `"stop"`), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := &harnessScript{Lines: map[string][]any{"p": {tc.line}}}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "", harnessDeps())}, Target: script}
			h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
			h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
			require.Len(t, script.Asked, tc.calls)
		})
	}
	t.Run("degraded is not stored", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"}}}
		cache := harnessModel(t, "model-cache", "order: 10", d)
		h := &harness{Stages: []pipeline.Stage{cache, harnessModel(t, "model-fallback", "fallback-models: [m1]", d)},
			Target: script}
		h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		require.Equal(t, []string{"p", "m1", "p", "m1"}, script.Asked)
	})
	t.Run("inside fallback a standby's reply is under its own name", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", d),
			harnessModel(t, "model-cache", "", d)}, Target: script}
		h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		require.Equal(t, []string{"p", "m1", "p"}, script.Asked)
		require.Equal(t, "one", harnessText(t, c))
		require.Equal(t, `"model-fallback;model=m1"`, string(c.Notes[messages.NoteDegraded]))
	})
}

func TestModelCacheWishes(t *testing.T) {
	t.Parallel()
	script := &harnessScript{Lines: map[string][]any{"p": {"one", "two", "three"}}}
	s := harnessModel(t, "model-cache", "", harnessDeps())
	h := &harness{Stages: []pipeline.Stage{s}, Target: script}
	for i, tc := range []struct{ wish, text, note string }{
		{"", "one", `"miss"`}, {"use", "one", `"hit"`}, {"off", "two", ""}, {"", "one", `"hit"`},
		{"refresh", "three", `"miss"`}, {"", "three", `"hit"`},
	} {
		c := harnessCall(`{"model":"p"}`)
		c.Cache = tc.wish
		c = h.Call(t, context.Background(), c)
		require.Equal(t, tc.text, harnessText(t, c), "%d", i)
		require.Equal(t, tc.note, string(c.Notes["modelCache"]), "%d", i)
	}
	stats := s.Details(context.Background())
	require.Positive(t, stats["cacheHits"])
}

func TestModelCacheStore(t *testing.T) {
	t.Parallel()
	t.Run("ttl (CA-6)", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			script := &harnessScript{Lines: map[string][]any{"p": {"one"}}}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "ttl: 5m", harnessDeps())}, Target: script}
			for i, wait := range []time.Duration{0, 5*time.Minute - time.Nanosecond, time.Nanosecond} {
				<-time.After(wait)
				h.Call(t, t.Context(), harnessCall(`{"model":"p"}`))
				require.Len(t, script.Asked, []int{1, 1, 2}[i])
			}
		})
	})
	t.Run("max-entries (CA-13)", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		script := &harnessScript{Lines: map[string][]any{"p": {"one"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "max-entries: 3", d)}, Target: script}
		ask := func(i int) int {
			h.Call(t, context.Background(), harnessCall(fmt.Sprintf(`{"model":"p","seed":%d}`, i)))
			return script.Count("p")
		}
		for i := range 10 {
			ask(i)
			keys, err := d.Store("cache").Keys(context.Background(), "model.")
			require.NoError(t, err)
			require.LessOrEqual(t, len(keys), 3)
		}
		require.Equal(t, 10, ask(9), "the newest is there")
		require.Equal(t, 11, ask(0), "the oldest went")
	})
	t.Run("fails open", func(t *testing.T) {
		t.Parallel()
		d := stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "", d)},
			Target: &harnessScript{Lines: map[string][]any{"p": {"one"}}}}
		c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		require.Equal(t, "one", harnessText(t, c))
		require.Equal(t, `"miss"`, string(c.Notes["modelCache"]))
	})
	t.Run("an entry of another tenant under the key is a miss", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		script := &harnessScript{Lines: map[string][]any{"p": {"one"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-cache", "", d)}, Target: script}
		h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		store := d.Store("cache")
		keys, err := store.Keys(context.Background(), "")
		require.NoError(t, err)
		e, err := store.Get(context.Background(), keys[0])
		require.NoError(t, err)
		for _, planted := range []string{strings.Replace(string(e.Value), `"t1"`, `"t2"`, 1), `{`, `{}`, `null`} {
			_, err = store.Put(context.Background(), keys[0], []byte(planted), 0, pipeline.Always())
			require.NoError(t, err)
			before := len(script.Asked)
			h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
			require.Len(t, script.Asked, before+1)
		}
	})
	for _, bad := range []string{"ttl: 0s", "max-entries: 0"} {
		_, _, err := harnessMake(messages.Model, "model-cache", bad, harnessDeps())
		require.ErrorContains(t, err, "agent.interceptor.model-cache", bad)
	}
	_, on, err := harnessMake(messages.Model, "model-cache", "", harnessDeps())
	require.NoError(t, err)
	require.False(t, on, "off by default")
}
