package stages

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
)

// fallbackEdgeRows are the rows in which no standby may run, or only under conditions.
func fallbackEdgeRows() []row {
	with := []made{{"model-fallback", "fallback-models: [m1]\nmax-retries: 1"}}
	// leaves room for a stage outside
	inner := []made{{"model-fallback", "fallback-models: [m1]\nmax-retries: 1\norder: 20"}}
	hello := request(user("hi"))
	down := fault(messages.ProviderError)
	asked := func(t *testing.T, o outcome, want ...string) {
		t.Helper()
		var got []string
		for _, raw := range o.seen {
			got = append(got, chat.ModelName(raw))
		}
		require.Equal(t, want, got)
	}
	own := func(order int, before, after pipeline.Func) []pipeline.Stage {
		return []pipeline.Stage{{Name: "own", Kind: messages.Model, Order: order, Before: before, After: after}}
	}
	out := []row{
		{id: "the flag is true at first sight (FB-6)", with: inner, turns: one(hello), script: []any{down, "m1 says"},
			calls: 1,
			own: own(15, func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				c.Note(messages.NoteIsFallback, true)
				return pipeline.Continue(), nil
			}, nil),
			check: func(t *testing.T, o outcome) {
				asked(t, o, "m")
				failed(messages.ProviderError, "")(t, o)
				require.True(t, o.last().Flag(messages.NoteIsFallback), "it is not this stage's to remove")
				require.NotContains(t, o.last().Notes, messages.NoteDegraded)
			}},
		{id: "the deadline passes in the primary (FB-13)", with: with,
			turns: []turn{{body: hello, time: 1500 * time.Millisecond}}, calls: 1,
			model: func(testing.TB) pipeline.Target {
				return pipeline.TargetFunc(func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
					<-ctx.Done()
					return down // the provider's own failure, only too late
				})
			},
			check: func(t *testing.T, o outcome) {
				asked(t, o, "m")
				failed(messages.DeadlineExceeded, "")(t, o)
				require.NotContains(t, o.last().Notes, messages.NoteIsFallback)
			}},
		{id: "an empty list of standbys is refused (FB-12)", with: []made{{"model-fallback", "fallback-models: []"}},
			refused: "fallback-models: the list is empty"},
		{id: "an empty list of standbys that is enabled is refused (FB-12)",
			with: []made{{"model-fallback", "enabled: true\nfallback-models: []"}}, refused: "agent.interceptor.model-fallback"},
		// The outer one is the one of the lower order: here the retry, whose second attempt begins with the primary again.
		{id: "retry outer to fallback (FB-15)", turns: one(hello), script: []any{down, down, down, "m1 says"}, calls: 4,
			with: append([]made{{"model-retry", "order: 15\nbase-delay: 1ms\nmax-retries: 1"}}, inner...),
			check: func(t *testing.T, o outcome) {
				asked(t, o, "m", "m1", "m", "m1")
				ended("m1 says")(t, o)
				round := []string{"model", "model-fallback.afterModel", "model", "model-fallback.afterModel",
					"model-retry.afterModel"}
				require.Equal(t, append(append([]string{}, round...), round...), o.path)
			}},
		{id: "fallback outer to retry (FB-15 FB-14)", turns: one(hello), script: []any{down, down, down, "m1 says"}, calls: 4,
			with: append([]made{{"model-retry", "base-delay: 1ms\nmax-retries: 1"}}, with...),
			check: func(t *testing.T, o outcome) {
				asked(t, o, "m", "m", "m1", "m1")
				ended("m1 says")(t, o)
				round := []string{"model", "model-retry.afterModel", "model", "model-retry.afterModel", "model-fallback.afterModel"}
				require.Equal(t, append(append([]string{}, round...), round...), o.path)
			}},
	}
	hold := func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		return pipeline.Hold(json.RawMessage(`{"may":"it"}`)), nil
	}
	parked := func(t *testing.T, o outcome) { require.Equal(t, []*messages.Call{nil}, o.got) }
	out = append(out,
		row{id: "an inner stage holds before the model (FB-10)", with: with, own: own(50, hold, nil),
			turns: []turn{{body: hello, held: true}}, calls: 0, check: parked},
		row{id: "an inner stage holds when the model has failed (FB-10)", with: with, own: own(50, nil, hold),
			turns:  []turn{{body: hello, held: true}},
			script: []any{down, "m1 says"}, calls: 1, check: parked},
	)
	for name, end := range map[string]func(ctx context.Context) error{
		"and the model stops":        context.Cause,
		"and the model fails itself": func(context.Context) error { return down },
	} {
		left := make(chan struct{})
		out = append(out, row{id: "the caller cancels " + name + " (FB-10)", with: with,
			turns: []turn{{body: hello, leave: left}}, calls: 1,
			model: func(testing.TB) pipeline.Target {
				return pipeline.TargetFunc(func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
					close(left) // twice would be a second call of the model
					<-ctx.Done()
					return end(ctx)
				})
			},
			check: func(t *testing.T, o outcome) {
				asked(t, o, "m")
				require.NotNil(t, o.last().Fault)
				require.NotContains(t, o.last().Notes, messages.NoteIsFallback)
				require.NotContains(t, o.last().Notes, messages.NoteDegraded)
			}})
	}
	return append(append(out, cutRows(with)...), markRows(with)...)
}

// cutRows read streams of the model endpoint from an upstream that breaks off: before anything was said, or after.
func cutRows(with []made) []row {
	streams := func(id string, calls int, breaks map[string]string, check func(t *testing.T, o outcome)) row {
		body := rawjson.SetField(request(user("hi")), "stream", []byte("true"))
		return row{id: id, with: with, turns: []turn{{body: body, stream: true}}, calls: calls, check: check,
			model: func(t testing.TB) pipeline.Target { return breaking(t, breaks) }}
	}
	cut := func(t *testing.T, o outcome) {
		failed(messages.StreamCut, "")(t, o)
		require.Equal(t, "Hel", o.shown, "no second stream, nothing repeated")
		require.Equal(t, messages.ProviderError, o.last().Fault.Last)
	}
	return []row{
		streams("the stream fails before the first chunk (FB-9)", 2, map[string]string{"m": ""},
			func(t *testing.T, o outcome) {
				ended("Hello from m1")(t, o)
				require.Equal(t, "Hello from m1", o.shown)
				require.Equal(t, `"`+messages.StandbyMark("m1")+`"`, string(o.last().Notes[messages.NoteDegraded]))
			}),
		streams("the stream fails after the first chunk (FB-9)", 1, map[string]string{"m": "Hel"}, cut),
		streams("the standby's stream fails after its first chunk (FB-9)", 2, map[string]string{"m": "", "m1": "Hel"}, cut),
	}
}

// breaking is the endpoint of an upstream that says hello as a stream. A model that is in breaks says that much, and
// then its connection is reset.
func breaking(t testing.TB, breaks map[string]string) pipeline.Target {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		name := gjson.GetBytes(raw, "model").String()
		say, broken := breaks[name]
		if !broken {
			say = "Hello from " + name
		}
		w.Header().Set("Content-Type", "text/event-stream")
		event := func(delta, finish string) {
			_, _ = fmt.Fprintf(w,
				"data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":%s,"+
					"\"finish_reason\":%s}]}\n\n", name, delta, finish)
			_ = http.NewResponseController(w).Flush()
		}
		event(`{"role":"assistant","content":""}`, "null")
		if say != "" {
			event(`{"content":`+string(rawjson.Encode(say))+`}`, "null")
		}
		if !broken {
			event(`{}`, `"stop"`)
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
			return
		}
		// The connection ends without the last chunk of its body, and with all that was said before: a reset might
		// overtake that.
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.(*net.TCPConn).Close()
		}
	}))
	t.Cleanup(srv.Close)
	table, err := model.NewTable(model.Provider{Name: "default", BaseURL: srv.URL, Models: []string{"m", "m1"}})
	require.NoError(t, err)
	e, err := model.NewEndpoint(model.Config{Table: table})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// markRows: a standby of another provider gets no marks of the first one's cache, and all else as the caller wrote it.
func markRows(with []made) []row {
	const head, tail = `{"model":"m",`,
		`,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",` +
			`"properties":{"cache_control":{"type":"string"}}}}`
	const body = head + `"temperature":0.2,"prompt_cache_key":"k","seed":9007199254740993,"messages":[` +
		`{"role":"system","content":[{"type":"text","text":"be kind","cache_control":{"type":"ephemeral"}},` +
		`{"cachePoint":{"type":"default"}}]},` +
		`{"role":"user","content":"cache_control","cache_control":{"type":"ephemeral"}}]` + tail + `,"cache_control":{}}]}`
	const clean = `{"model":"m1","temperature":0.2,"seed":9007199254740993,"messages":[` +
		`{"role":"system","content":[{"type":"text","text":"be kind"}]},{"role":"user","content":"cache_control"}]` + tail +
		`}]}`
	marks := func(id string, provider func(string) string, want string) row {
		return row{id: id, with: with, provider: provider, turns: one([]byte(body)),
			script: []any{fault(messages.ProviderError), "m1 says"}, calls: 2,
			check: func(t *testing.T, o outcome) {
				require.Equal(t, body, string(o.seen[0]))
				require.Equal(t, want, string(o.seen[1]))
				ended("m1 says")(t, o)
			}}
	}
	return []row{
		marks("a standby of another provider does not get what only the first one knows (FB-11)",
			func(m string) string { return "of-" + m }, clean),
		marks("the provider is not known (FB-11)", nil, clean),
		marks("the same provider keeps its marks (FB-11)", func(string) string { return "one" },
			`{"model":"m1",`+body[len(head):]),
	}
}
