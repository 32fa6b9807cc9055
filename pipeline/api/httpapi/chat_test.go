package httpapi

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
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestBodiesPassVerbatim(t *testing.T) {
	t.Parallel()
	rich := `{"model":"m1","messages":[{"role":"developer","content":null},{"role":"user",` +
		`"content":[{"type":"image_url","image_url":{"url":"data:x"}},` +
		`{"type":"file","file":{"file_id":"f"}}],"cache_control":{"type":"ephemeral"}}],"temperature":0,` +
		`"seed":9007199254740993,"stop":"END",` +
		`"top_k":5,"zz":1,"aa":{"b":false,"a":null},"arguments":"","x":1.0e3,"big":123456789012345678901234567890,` +
		`"u":"\u00e9","tools":[]}`
	answer := `{"id":"c","zz":9007199254740993,"choices":[{"index":0,"message":{"role":"assistant","content":"ok",` +
		`"vendor":{"x":1.10}},"finish_reason":"stop","logprobs":null}],"aa":0}`
	d := &apitest.Entry{Target: apitest.Replies(answer)}
	g := start(t, d, nil)
	for _, path := range []string{"/v1/chat/completions", "/chat/completions"} {
		got := g.Do(t, "POST", path, rich)
		require.Equal(t, 200, got.StatusCode, got.Body)
		require.Equal(t, answer, got.Body)
		require.Equal(t, "application/json", got.Header.Get("Content-Type"))
		require.Equal(t, rich, string(d.Last(t).Body))
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
	g := start(t, &apitest.Entry{Stages: []pipeline.Stage{mark, stop}}, nil)

	got := g.Chat(t, apitest.GoodBody, "X-Request-Id: mine")
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

	got = g.Chat(t, strings.Replace(apitest.GoodBody, `"hi"`, `"stop me"`, 1))
	got.IsFault(t, messages.Stopped)
	require.Equal(t, "stopper", got.Header.Get("Shallot-Stopped-By"), "CH-4")
	require.Equal(t, "0", got.Header.Get("Shallot-Attempts"))
	require.Equal(t, got.Header.Get("Shallot-Call"), got.Header.Get("X-Request-Id"),
		"T3: the call id is the default request id")
}

func TestFaultsKeepStatusAndHeaders(t *testing.T) {
	t.Parallel()
	limited := messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin)
	limited.RetryAfter = 1500 * time.Millisecond
	limited.Headers = map[string]string{"x-ratelimit-remaining-requests": "0", "x-request-id": "up-1", "set-cookie": "no",
		"X-RateLimit-Reset": "a\r\nb"}
	rejected := messages.NewFault(messages.ProviderRejected, "bad tool").At("tools[0]").From(messages.TargetOrigin)
	rejected.Status, rejected.Type, rejected.OpenAICode = 409, "odd_error", "odd"
	odd := messages.NewFault(messages.ProviderRejected, "?").From(messages.TargetOrigin)
	odd.Status = 42

	g := start(t, &apitest.Entry{Target: apitest.Faults(limited)}, nil)
	got := g.Chat(t, apitest.GoodBody)
	got.IsFault(t, messages.ProviderLimited)
	require.Equal(t, 429, got.StatusCode)
	require.Equal(t, "2", got.Header.Get("Retry-After"))
	require.Equal(t, "1500", got.Header.Get("retry-after-ms"))
	require.Empty(t, got.Header.Get("x-should-retry"), "retryable")
	require.Equal(t, "0", got.Header.Get("x-ratelimit-remaining-requests"))
	require.Equal(t, "a??b", got.Header.Get("x-ratelimit-reset"))
	require.Equal(t, "up-1", got.Header.Get("X-Upstream-Request-Id"))
	require.Empty(t, got.Header.Get("Set-Cookie"))
	require.Empty(t, got.Header.Get("Shallot-Stage"))

	got = start(t, &apitest.Entry{Target: apitest.Faults(rejected)}, nil).Chat(t, apitest.GoodBody)
	got.IsFault(t, messages.ProviderRejected)
	require.Equal(t, 409, got.StatusCode)
	require.JSONEq(t, `{"error":{"message":"bad tool","type":"odd_error","param":"tools[0]","code":"odd"}}`, got.Body)

	require.Equal(t, 502, start(t, &apitest.Entry{Target: apitest.Faults(odd)}, nil).Chat(t, apitest.GoodBody).StatusCode,
		"a status that is none")
}

func TestEveryFaultCodeIsWritten(t *testing.T) {
	t.Parallel()
	for _, code := range messages.Codes() {
		f := messages.NewFault(code, "text").From("some-stage")
		d := &apitest.Entry{Refuse: func(pipeline.Request) error { return f }}
		got := start(t, d, nil).Chat(t, apitest.GoodBody)
		got.IsFault(t, code)
		require.Equal(t, code.Info().Status, got.StatusCode)
		require.Equal(t, "some-stage", got.Header.Get("Shallot-Stage"))
		require.Equal(t, code == messages.Overloaded || code == messages.Stopping, got.Header.Get("Retry-After") != "", code)
	}
}

func TestDoorErrorsAreNotShown(t *testing.T) {
	t.Parallel()
	g := start(t,
		&apitest.Entry{Refuse: func(pipeline.Request) error { return errors.New("dial nats://user:secret@host") }}, nil)
	got := g.Chat(t, apitest.GoodBody)
	got.IsFault(t, messages.Internal)
	require.NotContains(t, got.Body, "secret")
	require.Contains(t, got.Message(), got.Header.Get("X-Request-Id"))
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
		"json": {body: apitest.GoodBody},
		"json with charset": {body: apitest.GoodBody,
			headers: []string{"Content-Type: application/json; charset=UTF-8"}},
		"no type": {body: apitest.GoodBody, headers: []string{"Content-Type: "}},
		"form, as an upload sends": {body: apitest.GoodBody,
			headers: []string{"Content-Type: multipart/form-data; boundary=x"}, want: messages.UnsupportedMedia},
		"text": {body: apitest.GoodBody, headers: []string{"Content-Type: text/plain"},
			want: messages.UnsupportedMedia},
		"other charset": {body: apitest.GoodBody,
			headers: []string{"Content-Type: application/json; charset=latin1"}, want: messages.UnsupportedMedia},
		"broken type": {body: apitest.GoodBody, headers: []string{"Content-Type: ;;"},
			want: messages.UnsupportedMedia},
		"gzip":     {body: pack(apitest.GoodBody), headers: []string{"Content-Encoding: gzip"}},
		"identity": {body: apitest.GoodBody, headers: []string{"Content-Encoding: identity"}},
		"says gzip, is none": {body: apitest.GoodBody, headers: []string{"Content-Encoding: gzip"},
			want: messages.InvalidRequest},
		"gzip cut": {body: pack(long)[:60], headers: []string{"Content-Encoding: gzip"},
			want: messages.InvalidRequest},
		"gzip twice": {body: pack(pack(apitest.GoodBody)), headers: []string{"Content-Encoding: gzip, gzip"},
			want: messages.UnsupportedMedia},
		"brotli": {body: apitest.GoodBody, headers: []string{"Content-Encoding: br"},
			want: messages.UnsupportedMedia},
		"gzip bomb by ratio": {body: pack(bomb), headers: []string{"Content-Encoding: gzip"},
			want: messages.TooLarge},
		"gzip over the limit": {body: pack(long), headers: []string{"Content-Encoding: gzip"}, limit: 10 << 10,
			want: messages.TooLarge},
		"over the limit": {body: long, limit: 10 << 10, want: messages.TooLarge},
		"at the limit":   {body: apitest.GoodBody, limit: int64(len(apitest.GoodBody))},
		"one over": {body: apitest.GoodBody, limit: int64(len(apitest.GoodBody)) - 1,
			want: messages.TooLarge},
		"large but within": {body: long},
		"gzip, empty as a whole body": {body: pack(""), headers: []string{"Content-Encoding: gzip"},
			want: messages.InvalidRequest},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, &apitest.Entry{}, func(c *Config, _ *Deps) { c.BodyLimit = tt.limit })
			got := g.Chat(t, tt.body, tt.headers...)
			if tt.want == "" {
				require.Equal(t, 200, got.StatusCode, got.Body)
				return
			}
			got.IsFault(t, tt.want)
		})
	}
}

func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, func(c *Config, _ *Deps) { c.BodyTimeout = 20 * time.Millisecond })
	got := g.Raw(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	require.Contains(t, got, " 408 ")
	require.Contains(t, got, "Connection: close")
}

func TestModels(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, nil)
	for _, path := range []string{"/v1/models", "/models"} {
		got := g.Do(t, "GET", path, "")
		require.JSONEq(t, `{"object":"list","data":[{"id":"m1","object":"model","created":1700000000,"owned_by":"demo"},
			{"id":"org/m2","object":"model","created":1700000001,"owned_by":"demo"},
			{"id":"agent/helper","object":"model","created":1700000002,"owned_by":"shallot"}]}`, got.Body)
	}
	for _, path := range []string{"/v1/models/org/m2", "/v1/models/org%2Fm2", "/models/org/m2"} {
		got := g.Do(t, "GET", path, "")
		require.Equal(t, 200, got.StatusCode, path)
		require.Equal(t, "org/m2", gjson.Get(got.Body, "id").Str)
	}
	g.Do(t, "GET", "/v1/models/nope", "").IsFault(t, messages.ModelNotFound)
	g.Do(t, "GET", "/v1/models/", "").IsFault(t, messages.ModelNotFound)
	head := g.Do(t, "HEAD", "/v1/models", "")
	require.Equal(t, 200, head.StatusCode)
	require.Empty(t, head.Body)

	g = start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Keys = keysOf(t, `keys: [{id: k, hash: "`+HashKey("k", nil)+`", models: ["org/*"], agents: [x]}]`)
	})
	got := g.Do(t, "GET", "/v1/models", "", "Authorization: Bearer k")
	require.Equal(t, `["org/m2"]`, gjson.Get(got.Body, "data.#.id").Raw, "a key sees what it may use")
	g.Do(t, "GET", "/v1/models/m1", "", "Authorization: Bearer k").IsFault(t, messages.ModelNotFound)
}

func TestAgents(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := start(t, d, func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
	body := strings.Replace(apitest.GoodBody, "m1", "agent/helper", 1)
	require.Equal(t, 200, g.Chat(t, body, apitest.AuthA).StatusCode)
	require.Equal(t, messages.Agent, d.Last(t).Kind)
	require.Equal(t, "helper", d.Last(t).Agent)
	require.Equal(t, 200, g.Do(t, "POST", "/v1/agents/helper/chat/completions", apitest.GoodBody,
		apitest.AuthA).StatusCode)
	require.Equal(t, messages.Agent, d.Last(t).Kind)
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, apitest.AuthA, "Shallot-Agent: helper").StatusCode)
	require.Equal(t, messages.Model, d.Last(t).Kind, "the header alone is metadata")

	g.Chat(t, strings.Replace(apitest.GoodBody, "m1", "agent/other", 1), apitest.AuthA).IsFault(t, messages.Forbidden)
	g.Chat(t, apitest.GoodBody, apitest.AuthA, "Shallot-Agent: other").IsFault(t, messages.Forbidden)
	g.Do(t, "POST", "/v1/agents/other/chat/completions", apitest.GoodBody, apitest.AuthA).IsFault(t, messages.Forbidden)
	g.Chat(t, strings.Replace(apitest.GoodBody, "m1", "m9", 1), apitest.AuthA).IsFault(t, messages.Forbidden)
	require.Equal(t, 400, g.Chat(t, strings.Replace(apitest.GoodBody, "m1", "agent/", 1), apitest.AuthB).StatusCode)
}

func TestAsyncAndResults(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := start(t, d, func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
	got := g.Chat(t, apitest.StreamBody, apitest.AuthA, "Prefer: respond-async, wait=5")
	require.Equal(t, 202, got.StatusCode, got.Body)
	require.True(t, d.Last(t).Submit)
	require.False(t, d.Last(t).Stream)
	id := got.Header.Get("Shallot-Call")
	path := got.Header.Get("Location")
	require.Equal(t, "/v1/results/"+id, path)
	require.Equal(t, id, gjson.Get(got.Body, "call").Str)

	got = g.Do(t, "GET", path, "", apitest.AuthA)
	require.Equal(t, 202, got.StatusCode, "it runs")
	require.Equal(t, "running", gjson.Get(got.Body, "status").Str)

	c := messages.NewCall(messages.Model, "ta", []byte(apitest.GoodBody))
	c.ID = id
	c.SetReply([]byte(`{"x":1}`))
	d.End(c)
	got = g.Do(t, "GET", path, "", apitest.AuthA)
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, `{"x":1}`, got.Body)
	require.Equal(t, id, got.Header.Get("Shallot-Call"))

	other := g.Do(t, "GET", path, "", apitest.AuthB)
	other.IsFault(t, messages.NotFound)
	require.Equal(t, 404, g.Do(t, "GET", path, "", apitest.AuthB, "Shallot-Tenant: ta").StatusCode)
	require.Equal(t, 200, g.Do(t, "GET", path, "", apitest.AuthOp, "Shallot-Tenant: ta").StatusCode)
	g.Do(t, "GET", "/v1/results/nope", "", apitest.AuthA).IsFault(t, messages.NotFound)
	g.Do(t, "GET", "/v1/results/"+messages.NewID(), "", apitest.AuthA).IsFault(t, messages.NotFound)

	c = c.Clone()
	c.Fail(messages.NewFault(messages.ProviderTimeout, "late").From(messages.TargetOrigin))
	d.End(c)
	g.Do(t, "GET", path, "", apitest.AuthA).IsFault(t, messages.ProviderTimeout)
}

func TestHeldCallIsAccepted(t *testing.T) {
	t.Parallel()
	hold := pipeline.Stage{Name: "approval", Kind: messages.Model, Order: 2,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Hold([]byte(`{}`)), nil
		}}
	got := start(t, &apitest.Entry{Stages: []pipeline.Stage{hold}}, nil).Chat(t, apitest.GoodBody)
	require.Equal(t, http.StatusAccepted, got.StatusCode)
	require.Equal(t, "approval_pending", gjson.Get(got.Body, "status").Str)
	require.NotEmpty(t, got.Header.Get("Location"))
}
