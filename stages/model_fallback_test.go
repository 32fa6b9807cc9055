package stages_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func providerFault(code messages.Code) *messages.Fault {
	return messages.NewFault(code, "upstream: %s", code)
}

func TestModelFallback(t *testing.T) {
	t.Parallel()
	down := providerFault(messages.ProviderError)
	empty := []byte(`{"id":"e","choices":[{"index":0,"message":{"role":"assistant","content":"","x":"<&>"}}],` +
		`"big":9007199254740993}`)
	toolOnly := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c",` +
		`"type":"function","function":{"name":"f","arguments":"{}"}}]}}]}`)
	second := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":""}},` +
		`{"index":1,"message":{"role":"assistant","content":[{"type":"text","text":"hi"}]}}]}`)
	for name, tc := range map[string]struct {
		config   string
		lines    map[string][]any
		body     string
		asked    []string
		text     string
		degraded string
		code     messages.Code
		reply    []byte
	}{
		"success (FB-1)": {lines: map[string][]any{"p": {"hi"}}, asked: []string{"p"}, text: "hi"},
		"standby (FB-2)": {lines: map[string][]any{"p": {down}, "m1": {"one"}, "m2": {"two"}}, asked: []string{"p", "m1"},
			text:     "one",
			degraded: "model-fallback;model=m1"},
		"empty text (FB-3)": {lines: map[string][]any{"p": {empty}, "m1": {"one"}}, asked: []string{"p", "m1"}, text: "one",
			degraded: "model-fallback;model=m1"},
		"tool call only is a reply (FB-3)": {lines: map[string][]any{"p": {toolOnly}}, asked: []string{"p"},
			reply: toolOnly},
		"text in the second choice (n2) (FB-3)": {lines: map[string][]any{"p": {second}}, asked: []string{"p"},
			reply: second},
		"all empty: the original reply, byte for byte (FB-3)": {lines: map[string][]any{"p": {empty}, "m1": {down},
			"m2": {down}, "m3": {down}},
			asked: []string{"p", "m1", "m1", "m2", "m2", "m3", "m3"}, reply: empty},
		"m1 fails twice (FB-4)": {lines: map[string][]any{"p": {down}, "m1": {down, empty}, "m2": {"two"}},
			asked: []string{"p", "m1", "m1", "m2"}, text: "two", degraded: "model-fallback;model=m2"},
		"all fail; a key that is refused is not tried twice (FB-5)": {
			lines: map[string][]any{"p": {providerFault(messages.ProviderTimeout)}, "m1": {down}, "m2": {down},
				"m3": {providerFault(messages.ProviderAuth)}},
			asked: []string{"p", "m1", "m1", "m2", "m2", "m3"}, code: messages.ProviderTimeout},
		"column F no": {lines: map[string][]any{"p": {providerFault(messages.ProviderRejected)}}, asked: []string{"p"},
			code: messages.ProviderRejected},
		"fallback-on widens": {config: "fallback-on: [target, provider_rejected]",
			lines: map[string][]any{"p": {providerFault(messages.ProviderRejected)}, "m1": {"one"}},
			asked: []string{"p", "m1"}, text: "one", degraded: "model-fallback;model=m1"},
		"fallback-on narrows": {config: "fallback-on: [provider_quota]", lines: map[string][]any{"p": {down}},
			asked: []string{"p"}, code: messages.ProviderError},
		"after the first chunk (FB-9)": {lines: map[string][]any{"p": {providerFault(messages.StreamCut)}},
			asked: []string{"p"}, code: messages.StreamCut},
		"standby cut (FB-9)": {lines: map[string][]any{"p": {down}, "m1": {providerFault(messages.StreamCut)}},
			asked: []string{"p", "m1"}, code: messages.StreamCut},
		"cancel (FB-10)": {lines: map[string][]any{"p": {messages.NewFault(messages.Cancelled, "left").From("caller")}},
			asked: []string{"p"},
			code:  messages.Cancelled},
		"cancelled at the standby (FB-10)": {lines: map[string][]any{"p": {down},
			"m1": {messages.NewFault(messages.Cancelled, "left").From("caller")}},
			asked: []string{"p", "m1"}, code: messages.Cancelled},
		"standby equal to the failing model": {body: `{"model":"m1","messages":[]}`,
			lines: map[string][]any{"m1": {down}, "m2": {"two"}},
			asked: []string{"m1", "m2"}, text: "two", degraded: "model-fallback;model=m2"},
		"max-retries 0": {config: "max-retries: 0", lines: map[string][]any{"p": {down}}, asked: []string{"p"},
			code: messages.ProviderError},
		"request is not an object": {body: `not json }`, lines: map[string][]any{"": {down}}, asked: []string{""},
			code: messages.ProviderError},
		"no model in the body": {body: `{}`, lines: map[string][]any{"": {down}, "m1": {"one"}}, asked: []string{"", "m1"},
			text: "one", degraded: "model-fallback;model=m1"},
		"reply is not JSON": {lines: map[string][]any{"p": {[]byte("sorry")}, "m1": {down}, "m2": {down}, "m3": {down}},
			asked: []string{"p", "m1", "m1", "m2", "m2", "m3", "m3"}, reply: []byte(`"sorry"`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				script := &harnessScript{Lines: tc.lines}
				s := harnessModel(t, "model-fallback", "fallback-models: [m1, m2, m3, m1]\n"+tc.config, harnessDeps())
				h := &harness{Stages: []pipeline.Stage{s}, Target: script}
				if tc.body == "" {
					tc.body = `{"model":"p","messages":[{"role":"user","content":"hi"}],"temperature":0}`
				}
				c := h.Call(t, context.Background(), harnessCall(tc.body))
				require.Equal(t, tc.asked, script.Asked)
				require.NotContains(t, c.Notes, messages.NoteIsFallback)
				var degraded string
				c.Noted(messages.NoteDegraded, &degraded)
				require.Equal(t, tc.degraded, degraded)
				require.Nil(t, c.Kept("model-fallback"))
				switch {
				case tc.code != "":
					require.NotNil(t, c.Fault)
					require.Equal(t, tc.code, c.Fault.Code)
				case tc.reply != nil:
					require.Equal(t, string(tc.reply), string(c.Reply()))
				default:
					require.Equal(t, tc.text, harnessText(t, c))
				}
				for i, d := range h.Delays { // a model that is its own provider: a pause before its second try
					again := slices.Contains(tc.asked[:i+1], tc.asked[i+1])
					require.Equal(t, again, d > 300*time.Millisecond, "pause before try %d: %s", i+1, d)
				}
			})
		})
	}
}

func TestModelFallbackFlag(t *testing.T) {
	t.Parallel()
	t.Run("flag already true (FB-6)", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps())},
			Target: script}
		c := harnessCall(`{"model":"p"}`)
		c.Note(messages.NoteIsFallback, true)
		c = h.Call(t, context.Background(), c)
		require.Equal(t, messages.ProviderError, c.Fault.Code)
		require.Equal(t, []string{"p"}, script.Asked)
		require.True(t, c.Flag(messages.NoteIsFallback), "the flag is not this stage's to remove")
	})
	t.Run("inner stages see each standby and the flag (X-13)", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"}}}
		var mine []string
		inner := pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 50, Reads: []string{"request"},
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				mine = append(mine, chat.ModelName(c.Request())+" "+string(c.Notes[messages.NoteIsFallback]))
				return pipeline.Continue(), nil
			}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps()),
			inner}, Target: script}
		h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		require.Equal(t, []string{"p ", "p ", "m1 true", "m1 true"}, mine) // each phase twice
	})
}

func TestModelFallbackNotOfTarget(t *testing.T) {
	t.Parallel()
	inner := func(run pipeline.Func) pipeline.Stage {
		return pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 50, Before: run}
	}
	for name, tc := range map[string]struct {
		run  pipeline.Func
		code messages.Code
	}{
		"stage error (FB-10)": {func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Verdict{}, errors.New("broken")
		}, messages.StageError},
		"stop (FB-10)": {func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Stop(), nil },
			messages.Stopped},
		"a stage hands on the fault of a model call of its own (FB-10)": {
			func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				return pipeline.Verdict{}, messages.NewFault(messages.ProviderError, "summary model").From(messages.TargetOrigin)
			}, messages.ProviderError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := &harnessScript{Lines: map[string][]any{"m1": {"one"}}}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps()),
				inner(tc.run)}, Target: script}
			c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
			require.Equal(t, tc.code, c.Fault.Code)
			require.Empty(t, script.Asked)
		})
	}
	t.Run("inner stage holds (FB-10)", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{}
		hold := inner(func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Hold(json.RawMessage(`{}`)), nil
		})
		l := pipeline.Chain([]pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps()),
			hold}, script)
		_, err := l.Call(context.Background(), harnessCall(`{"model":"p"}`))
		require.ErrorIs(t, err, pipeline.ErrHeld)
		require.Empty(t, script.Asked)
	})
}

func TestModelFallbackTime(t *testing.T) {
	t.Parallel()
	t.Run("deadline passed after the primary (FB-13)", func(t *testing.T) {
		t.Parallel()
		var asked []string
		c := harnessCall(`{"model":"p"}`)
		c.Deadline = time.Now().Add(time.Hour)
		target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			asked = append(asked, chat.ModelName(c.Request()))
			c.Deadline = time.Now().Add(-time.Second)
			return providerFault(messages.ProviderError)
		})
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps())},
			Target: target}
		c = h.Call(t, context.Background(), c)
		require.Equal(t, []string{"p"}, asked)
		require.Equal(t, messages.DeadlineExceeded, c.Fault.Code)
		require.NotContains(t, c.Notes, messages.NoteIsFallback)
	})
	t.Run("the caller left while the primary failed (FB-10)", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(context.Background())
		calls := 0
		target := pipeline.TargetFunc(func(context.Context, *messages.Call, pipeline.Emit) error {
			calls++
			cancel(pipeline.ErrCancelled)
			return providerFault(messages.ProviderError)
		})
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", harnessDeps())},
			Target: target}
		h.Call(t, ctx, harnessCall(`{"model":"p"}`))
		require.Equal(t, 1, calls)
	})
}

func TestModelFallbackMarks(t *testing.T) {
	t.Parallel()
	body := `{"model":"p","temperature":0.2,"prompt_cache_key":"k","seed":9007199254740993,"messages":[` +
		`{"role":"system","content":[{"type":"text","text":"be kind","cache_control":{"type":"ephemeral"}},` +
		`{"cachePoint":{"type":"default"}}]},` +
		`{"role":"user","content":"cache_control","cache_control":{"type":"ephemeral"}}],` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",` +
		`"properties":{"cache_control":{"type":"string"}}}},"cache_control":{}}]}`
	clean := `{"model":"m1","temperature":0.2,"seed":9007199254740993,"messages":[` +
		`{"role":"system","content":[{"type":"text","text":"be kind"}]},{"role":"user","content":"cache_control"}],` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",` +
		`"properties":{"cache_control":{"type":"string"}}}}}]}`
	for name, tc := range map[string]struct {
		provider func(string) string
		want     string
	}{
		"provider not known (FB-11)":    {nil, clean},
		"another provider (FB-11)":      {func(m string) string { return "of-" + m }, clean},
		"the same one keeps it (FB-11)": {func(string) string { return "one" }, `{"model":"m1"` + body[len(`{"model":"p"`):]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"}}}
			d := harnessDeps()
			d.Provider = tc.provider
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", d)},
				Target: script}
			h.Call(t, context.Background(), harnessCall(body))
			require.Equal(t, body, string(script.Seen[0]))
			require.Equal(t, tc.want, string(script.Seen[1]))
		})
	}
}

func TestModelFallbackConfig(t *testing.T) {
	t.Parallel()
	yes := func(string) bool { return true }
	serves := func(m string) bool { return m == "qwen-plus" || m == "m1" }
	for name, tc := range map[string]struct {
		config   string
		explicit func(string) bool
		err      string
	}{
		"empty list (FB-12)":               {"fallback-models: []", yes, "fallback-models"},
		"empty list, switched off (FB-12)": {"enabled: false\nfallback-models: []", yes, ""},
		"unknown name, written (FB-12)":    {"fallback-models: [m1, gpt-x]", yes, `"gpt-x"`},
		"unknown names, built in (FB-12)":  {"", nil, ""},
		"negative tries":                   {"max-retries: -1", nil, "max-retries"},
		"more tries than a frame has":      {"max-retries: 60", nil, "max-retries"},
		"unknown code":                     {"fallback-on: [timeout]", nil, "timeout"},
		"a code that cannot be":            {"fallback-on: [cancelled]", nil, "cancelled"},
		"empty name":                       {`fallback-models: [" "]`, nil, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			d := harnessDeps()
			d.Serves, d.Lists, d.Explicit, d.Log = serves, serves, tc.explicit, slog.New(slog.NewTextHandler(&log, nil))
			_, _, err := harnessMake(messages.Model, "model-fallback", tc.config, d)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				require.ErrorContains(t, err, "agent.interceptor.model-fallback")
				return
			}
			require.NoError(t, err)
			if tc.config == "" {
				require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), "one start line")
				require.Contains(t, log.String(), "qwen-turbo")
			}
		})
	}
}

func TestModelFallbackRecord(t *testing.T) {
	t.Parallel()
	script := func() *harnessScript {
		return &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"}}}
	}
	d := harnessDeps()
	h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", d)},
		Target: script()}
	c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
	e, err := d.Store("retry").Get(context.Background(), messages.Key("t1", c.ID, "model-fallback", "1"))
	require.NoError(t, err)
	require.JSONEq(t, `"provider_error"`, string(mustField(t, e.Value, "lastCode")))

	d = stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}
	h = &harness{Stages: []pipeline.Stage{harnessModel(t, "model-fallback", "fallback-models: [m1]", d)}, Target: script()}
	c = h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
	require.Equal(t, "one", harnessText(t, c), "the record's store is down: the call goes on")
}

func mustField(t *testing.T, raw []byte, key string) []byte {
	t.Helper()
	v, ok := rawjson.Field(raw, key)
	require.True(t, ok, "%s has no %s", raw, key)
	return v
}

// FuzzModelFallbackRequest: whatever a caller sends as JSON object, the standby gets valid JSON with its own name.
func FuzzModelFallbackRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"p","messages":[{"content":[{"cachePoint":{}},{"cache_control":1,"type":"text"}]}]}`, `{}`, `[]`,
		`{"model":null,"messages":{}}`,
		`{"tools":[{"function":[]},1,{"function":{"cache_control":{}}}],"messages":[[],"x",{"content":{},` +
			`"tool_calls":[{"cache_control":1}]}]}`,
		`{"model":"p","model":"q","cache_control":1,"cache_control":2}`, `{"cache\u005fcontrol":{},"a":"}"}`,
		`{"":{"cache_control":1}}`,
	} {
		f.Add([]byte(s))
	}
	d := harnessDeps()
	s := harnessModel(f, "model-fallback", "fallback-models: [standby]\nmax-retries: 1", d)
	f.Fuzz(func(t *testing.T, body []byte) {
		calls := 0
		h := &harness{Stages: []pipeline.Stage{s},
			Target: pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				if calls++; calls > 1 {
					require.True(t, json.Valid(c.Request()), "%s", c.Request())
					require.Equal(t, "standby", chat.ModelName(c.Request()))
					_, marked := rawjson.Field(c.Request(), "cache_control")
					require.False(t, marked)
				}
				return providerFault(messages.ProviderError)
			})}
		c := h.Call(t, context.Background(), harnessCall(string(body)))
		require.Equal(t, messages.ProviderError, c.Fault.Code)
	})
}

func BenchmarkModelFallbackPass(b *testing.B) {
	s := harnessModel(b, "model-fallback", "fallback-models: [m1]", harnessDeps())
	reply := chat.TextReply("x", "p", "hello", 1)
	l := pipeline.Chain([]pipeline.Stage{s},
		pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			c.SetReply(reply)
			return nil
		}))
	for b.Loop() {
		if _, err := l.Call(context.Background(), harnessCall(`{"model":"p","messages":[]}`)); err != nil {
			b.Fatal(err)
		}
	}
}
