package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func TestBodiesPassVerbatim(t *testing.T) {
	t.Parallel()
	rich := `{"model":"m1","messages":[{"role":"developer","content":null},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}},` +
		`{"type":"file","file":{"file_id":"f"}}],"cache_control":{"type":"ephemeral"}}],"temperature":0,"seed":9007199254740993,"stop":"END",` +
		`"top_k":5,"zz":1,"aa":{"b":false,"a":null},"arguments":"","x":1.0e3,"big":123456789012345678901234567890,"u":"\u00e9","tools":[]}`
	answer := `{"id":"c","zz":9007199254740993,"choices":[{"index":0,"message":{"role":"assistant","content":"ok","vendor":{"x":1.10}},"finish_reason":"stop","logprobs":null}],"aa":0}`
	d := &localEntry{target: replies(answer)}
	g := start(t, d, nil)
	for _, path := range []string{"/v1/chat/completions", "/chat/completions"} {
		got := g.do(t, "POST", path, rich)
		require.Equal(t, 200, got.StatusCode, got.body)
		require.Equal(t, answer, got.body)
		require.Equal(t, "application/json", got.Header.Get("Content-Type"))
		require.Equal(t, rich, string(d.last(t).Body))
	}
}

func TestAnswerHeaders(t *testing.T) {
	t.Parallel()
	mark := pipeline.Stage{Name: "mark", Kind: messages.Model, Order: 10,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.Note(messages.NoteDegraded, "model-fallback;model=m2")
			c.Note(messages.NoteModelCache, "miss")
			c.Note(messages.NoteUpstreamHeaders, map[string]string{"X-RateLimit-Remaining-Tokens": "7", "x-request-id": "up"})
			return pipeline.Continue(), nil
		}}
	stop := pipeline.Stage{Name: "stopper", Kind: messages.Model, Order: 11,
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if strings.Contains(string(c.Request()), "stop me") {
				return pipeline.Stop(), nil
			}
			return pipeline.Continue(), nil
		}}
	g := start(t, &localEntry{stages: []pipeline.Stage{mark, stop}}, nil)

	got := g.chat(t, goodBody, "X-Request-Id: mine")
	require.Equal(t, 200, got.StatusCode)
	h := got.Header
	require.NoError(t, uuid.Validate(h.Get("Shallot-Call")))
	require.Equal(t, "stopper.beforeModel,model,mark.afterModel", h.Get("Shallot-Path"))
	require.Equal(t, "1", h.Get("Shallot-Attempts"))
	require.Equal(t, "model-fallback;model=m2", h.Get("Shallot-Degraded"))
	require.Equal(t, "miss", h.Get("Shallot-Cache"))
	require.NotEmpty(t, h.Get("Shallot-Duration-Ms"))
	require.Equal(t, "7", h.Get("x-ratelimit-remaining-tokens"))
	require.Equal(t, "up", h.Get("X-Upstream-Request-Id"))
	require.Equal(t, "mine", h.Get("X-Request-Id"))
	require.Empty(t, h.Get("Shallot-Stopped-By"))

	got = g.chat(t, strings.Replace(goodBody, `"hi"`, `"stop me"`, 1))
	got.isFault(t, messages.Stopped)
	require.Equal(t, "stopper", got.Header.Get("Shallot-Stopped-By"), "CH-4")
	require.Equal(t, "0", got.Header.Get("Shallot-Attempts"))
	require.Equal(t, got.Header.Get("Shallot-Call"), got.Header.Get("X-Request-Id"), "T3: the call id is the default request id")
}

func TestFaultsKeepStatusAndHeaders(t *testing.T) {
	t.Parallel()
	limited := messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin)
	limited.RetryAfter = 1500 * time.Millisecond
	limited.Headers = map[string]string{"x-ratelimit-remaining-requests": "0", "x-request-id": "up-1", "set-cookie": "no", "X-RateLimit-Reset": "a\r\nb"}
	rejected := messages.NewFault(messages.ProviderRejected, "bad tool").At("tools[0]").From(messages.TargetOrigin)
	rejected.Status, rejected.Type, rejected.OpenAICode = 409, "odd_error", "odd"
	odd := messages.NewFault(messages.ProviderRejected, "?").From(messages.TargetOrigin)
	odd.Status = 42

	g := start(t, &localEntry{target: faults(limited)}, nil)
	got := g.chat(t, goodBody)
	got.isFault(t, messages.ProviderLimited)
	require.Equal(t, 429, got.StatusCode)
	require.Equal(t, "2", got.Header.Get("Retry-After"))
	require.Equal(t, "1500", got.Header.Get("retry-after-ms"))
	require.Empty(t, got.Header.Get("x-should-retry"), "retryable")
	require.Equal(t, "0", got.Header.Get("x-ratelimit-remaining-requests"))
	require.Equal(t, "a??b", got.Header.Get("x-ratelimit-reset"))
	require.Equal(t, "up-1", got.Header.Get("X-Upstream-Request-Id"))
	require.Empty(t, got.Header.Get("Set-Cookie"))
	require.Empty(t, got.Header.Get("Shallot-Stage"))

	got = start(t, &localEntry{target: faults(rejected)}, nil).chat(t, goodBody)
	got.isFault(t, messages.ProviderRejected)
	require.Equal(t, 409, got.StatusCode)
	require.JSONEq(t, `{"error":{"message":"bad tool","type":"odd_error","param":"tools[0]","code":"odd"}}`, got.body)

	require.Equal(t, 502, start(t, &localEntry{target: faults(odd)}, nil).chat(t, goodBody).StatusCode, "a status that is none")
}

func TestEveryFaultCodeIsWritten(t *testing.T) {
	t.Parallel()
	for _, code := range messages.Codes() {
		f := messages.NewFault(code, "text").From("some-stage")
		d := &localEntry{accept: func(pipeline.Request) error { return f }}
		got := start(t, d, nil).chat(t, goodBody)
		got.isFault(t, code)
		require.Equal(t, code.Info().Status, got.StatusCode)
		require.Equal(t, "some-stage", got.Header.Get("Shallot-Stage"))
		require.Equal(t, code == messages.Overloaded, got.Header.Get("Retry-After") != "", code)
	}
}

func TestDoorErrorsAreNotShown(t *testing.T) {
	t.Parallel()
	g := start(t, &localEntry{accept: func(pipeline.Request) error { return errors.New("dial nats://user:secret@host") }}, nil)
	got := g.chat(t, goodBody)
	got.isFault(t, messages.Internal)
	require.NotContains(t, got.body, "secret")
	require.Contains(t, got.message(), got.Header.Get("X-Request-Id"))
}

func TestBodyReading(t *testing.T) {
	t.Parallel()
	pack := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(s))
		_ = z.Close()
		return b.String()
	}
	long := `{"model":"m1","messages":[{"role":"user","content":"` + strings.Repeat("x", 100<<10) + `"}]}`
	bomb := `{"model":"m1","messages":["` + strings.Repeat(" ", 8<<20) + `"]}`
	tests := map[string]struct {
		body    string
		headers []string
		limit   int64
		want    messages.Code
	}{
		"json":                        {body: goodBody},
		"json with charset":           {body: goodBody, headers: []string{"Content-Type: application/json; charset=UTF-8"}},
		"no type":                     {body: goodBody, headers: []string{"Content-Type: "}},
		"form, as an upload sends":    {body: goodBody, headers: []string{"Content-Type: multipart/form-data; boundary=x"}, want: messages.UnsupportedMedia},
		"text":                        {body: goodBody, headers: []string{"Content-Type: text/plain"}, want: messages.UnsupportedMedia},
		"other charset":               {body: goodBody, headers: []string{"Content-Type: application/json; charset=latin1"}, want: messages.UnsupportedMedia},
		"broken type":                 {body: goodBody, headers: []string{"Content-Type: ;;"}, want: messages.UnsupportedMedia},
		"gzip":                        {body: pack(goodBody), headers: []string{"Content-Encoding: gzip"}},
		"identity":                    {body: goodBody, headers: []string{"Content-Encoding: identity"}},
		"says gzip, is none":          {body: goodBody, headers: []string{"Content-Encoding: gzip"}, want: messages.InvalidRequest},
		"gzip cut":                    {body: pack(long)[:60], headers: []string{"Content-Encoding: gzip"}, want: messages.InvalidRequest},
		"gzip twice":                  {body: pack(pack(goodBody)), headers: []string{"Content-Encoding: gzip, gzip"}, want: messages.UnsupportedMedia},
		"brotli":                      {body: goodBody, headers: []string{"Content-Encoding: br"}, want: messages.UnsupportedMedia},
		"gzip bomb by ratio":          {body: pack(bomb), headers: []string{"Content-Encoding: gzip"}, want: messages.TooLarge},
		"gzip over the limit":         {body: pack(long), headers: []string{"Content-Encoding: gzip"}, limit: 10 << 10, want: messages.TooLarge},
		"over the limit":              {body: long, limit: 10 << 10, want: messages.TooLarge},
		"at the limit":                {body: goodBody, limit: int64(len(goodBody))},
		"one over":                    {body: goodBody, limit: int64(len(goodBody)) - 1, want: messages.TooLarge},
		"large but within":            {body: long},
		"gzip, empty as a whole body": {body: pack(""), headers: []string{"Content-Encoding: gzip"}, want: messages.InvalidRequest},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, &localEntry{}, func(c *settings, _ *parts) { c.BodyLimit = tt.limit })
			got := g.chat(t, tt.body, tt.headers...)
			if tt.want == "" {
				require.Equal(t, 200, got.StatusCode, got.body)
				return
			}
			got.isFault(t, tt.want)
		})
	}
}

func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	g := start(t, &localEntry{}, func(c *settings, _ *parts) { c.BodyTimeout = 20 * time.Millisecond })
	got := g.raw(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	require.Contains(t, got, " 408 ")
	require.Contains(t, got, "Connection: close")
}

func TestModels(t *testing.T) {
	t.Parallel()
	g := start(t, &localEntry{}, nil)
	for _, path := range []string{"/v1/models", "/models"} {
		got := g.do(t, "GET", path, "")
		require.JSONEq(t, `{"object":"list","data":[{"id":"m1","object":"model","created":1700000000,"owned_by":"demo"},
			{"id":"org/m2","object":"model","created":1700000001,"owned_by":"demo"},
			{"id":"agent/helper","object":"model","created":1700000002,"owned_by":"shallot"}]}`, got.body)
	}
	for _, path := range []string{"/v1/models/org/m2", "/v1/models/org%2Fm2", "/models/org/m2"} {
		got := g.do(t, "GET", path, "")
		require.Equal(t, 200, got.StatusCode, path)
		require.Equal(t, "org/m2", gjson.Get(got.body, "id").Str)
	}
	g.do(t, "GET", "/v1/models/nope", "").isFault(t, messages.ModelNotFound)
	g.do(t, "GET", "/v1/models/", "").isFault(t, messages.ModelNotFound)
	head := g.do(t, "HEAD", "/v1/models", "")
	require.Equal(t, 200, head.StatusCode)
	require.Empty(t, head.body)

	g = start(t, &localEntry{}, func(_ *settings, p *parts) {
		p.Keys = keysOf(t, `keys: [{id: k, hash: "`+hashKey("k", nil)+`", models: ["org/*"], agents: [x]}]`)
	})
	got := g.do(t, "GET", "/v1/models", "", "Authorization: Bearer k")
	require.Equal(t, `["org/m2"]`, gjson.Get(got.body, "data.#.id").Raw, "a key sees what it may use")
	g.do(t, "GET", "/v1/models/m1", "", "Authorization: Bearer k").isFault(t, messages.ModelNotFound)
}

func TestAgents(t *testing.T) {
	t.Parallel()
	d := &localEntry{}
	g := start(t, d, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	body := strings.Replace(goodBody, "m1", "agent/helper", 1)
	require.Equal(t, 200, g.chat(t, body, authA).StatusCode)
	require.Equal(t, messages.Agent, d.last(t).Kind)
	require.Equal(t, "helper", d.last(t).Agent)
	require.Equal(t, 200, g.do(t, "POST", "/v1/agents/helper/chat/completions", goodBody, authA).StatusCode)
	require.Equal(t, messages.Agent, d.last(t).Kind)
	require.Equal(t, 200, g.chat(t, goodBody, authA, "Shallot-Agent: helper").StatusCode)
	require.Equal(t, messages.Model, d.last(t).Kind, "the header alone is metadata")

	g.chat(t, strings.Replace(goodBody, "m1", "agent/other", 1), authA).isFault(t, messages.Forbidden)
	g.chat(t, goodBody, authA, "Shallot-Agent: other").isFault(t, messages.Forbidden)
	g.do(t, "POST", "/v1/agents/other/chat/completions", goodBody, authA).isFault(t, messages.Forbidden)
	g.chat(t, strings.Replace(goodBody, "m1", "m9", 1), authA).isFault(t, messages.Forbidden)
	require.Equal(t, 400, g.chat(t, strings.Replace(goodBody, "m1", "agent/", 1), authB).StatusCode)
}

func TestAsyncAndResults(t *testing.T) {
	t.Parallel()
	d := &localEntry{}
	g := start(t, d, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	got := g.chat(t, streamBody, authA, "Prefer: respond-async, wait=5")
	require.Equal(t, 202, got.StatusCode, got.body)
	require.True(t, d.last(t).Submit)
	require.False(t, d.last(t).Stream)
	id := got.Header.Get("Shallot-Call")
	path := got.Header.Get("Location")
	require.Equal(t, "/v1/results/"+id, path)
	require.Equal(t, id, gjson.Get(got.body, "id").Str)

	got = g.do(t, "GET", path, "", authA)
	require.Equal(t, 202, got.StatusCode, "it runs")
	require.Equal(t, "running", gjson.Get(got.body, "status").Str)

	c := messages.NewCall(messages.Model, "ta", []byte(goodBody))
	c.ID = id
	c.SetReply([]byte(`{"x":1}`))
	d.end(c)
	got = g.do(t, "GET", path, "", authA)
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, `{"x":1}`, got.body)
	require.Equal(t, id, got.Header.Get("Shallot-Call"))

	other := g.do(t, "GET", path, "", authB)
	other.isFault(t, messages.NotFound)
	require.Equal(t, 404, g.do(t, "GET", path, "", authB, "Shallot-Tenant: ta").StatusCode)
	require.Equal(t, 200, g.do(t, "GET", path, "", authOp, "Shallot-Tenant: ta").StatusCode)
	g.do(t, "GET", "/v1/results/nope", "", authA).isFault(t, messages.NotFound)
	g.do(t, "GET", "/v1/results/"+messages.NewID(), "", authA).isFault(t, messages.NotFound)

	c = c.Clone()
	c.Fail(messages.NewFault(messages.ProviderTimeout, "late").From(messages.TargetOrigin))
	d.end(c)
	g.do(t, "GET", path, "", authA).isFault(t, messages.ProviderTimeout)
}

func TestHeldCallIsAccepted(t *testing.T) {
	t.Parallel()
	hold := pipeline.Stage{Name: "approval", Kind: messages.Model, Order: 2,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Hold([]byte(`{}`)), nil
		}}
	got := start(t, &localEntry{stages: []pipeline.Stage{hold}}, nil).chat(t, goodBody)
	require.Equal(t, http.StatusAccepted, got.StatusCode)
	require.Equal(t, "approval_pending", gjson.Get(got.body, "status").Str)
	require.NotEmpty(t, got.Header.Get("Location"))
}
