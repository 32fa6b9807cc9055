package httpapi

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestBodyValidation(t *testing.T) {
	t.Parallel()
	msgs := `"messages":[{"role":"user","content":"hi"}]`
	deep := func(n int) string {
		return `{"model":"m1",` + msgs + `,"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	list := func(n int, of string) string { return "[" + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + "]" }
	tests := map[string]struct {
		body, param string
		code        messages.Code // empty: accepted
	}{
		"good":                    {body: apitest.GoodBody},
		"white space":             {body: " \n" + apitest.GoodBody + "\n"},
		"empty":                   {body: "  ", code: messages.InvalidRequest},
		"no JSON":                 {body: `{"model":`, code: messages.InvalidRequest},
		"two values":              {body: apitest.GoodBody + apitest.GoodBody, code: messages.InvalidRequest},
		"array":                   {body: `[1]`, code: messages.InvalidRequest},
		"string":                  {body: `"x"`, code: messages.InvalidRequest},
		"bad UTF-8":               {body: "{\"model\":\"m\xff\"," + msgs + "}", code: messages.InvalidRequest},
		"byte order mark":         {body: "\xef\xbb\xbf" + apitest.GoodBody, code: messages.InvalidRequest},
		"NUL":                     {body: "\x00", code: messages.InvalidRequest},
		"no model":                {body: `{` + msgs + `}`, param: "model", code: messages.InvalidRequest},
		"empty model":             {body: `{"model":"",` + msgs + `}`, param: "model", code: messages.InvalidRequest},
		"null model":              {body: `{"model":null,` + msgs + `}`, param: "model", code: messages.InvalidRequest},
		"number as model":         {body: `{"model":4,` + msgs + `}`, param: "model", code: messages.InvalidRequest},
		"model with a line break": {body: `{"model":"a\nb",` + msgs + `}`, param: "model", code: messages.InvalidRequest},
		"long model": {body: `{"model":"` + strings.Repeat("m", 257) + `",` + msgs + `}`, param: "model",
			code: messages.InvalidRequest},
		"model with an escape": {body: `{"model":"org\/m",` + msgs + `}`},
		"model twice": {body: `{"model":"m1","model":"m2",` + msgs + `}`, param: "model",
			code: messages.InvalidRequest},
		"model in another case": {body: `{"model":"m1","Model":"m2",` + msgs + `}`, param: "Model",
			code: messages.InvalidRequest},
		"escaped second model": {body: `{"model":"m1","mod\u0065l":"m2",` + msgs + `}`, param: "model",
			code: messages.InvalidRequest},
		"unknown field twice": {body: `{"model":"m1",` + msgs + `,"x":1,"x":2}`, param: "x",
			code: messages.InvalidRequest},
		"content twice": {body: `{"model":"m1","messages":[{"role":"user","content":"a","content":"b"}]}`,
			param: "content", code: messages.InvalidRequest},
		"an escaped second key": {body: `{"model":"m1",` + msgs + `,"x":{"abc":1,"a\u0062c":2}}`, param: "abc",
			code: messages.InvalidRequest},
		"a key in two objects": {body: `{"model":"m1",` + msgs + `,"x":{"a":1},"y":[{"a":1},{"a":2,"b":{"a":3}}]}`},
		"the last of many keys twice": {body: `{"model":"m1",` + msgs + `,"x":` + object(300, `"k299":1`) + `}`,
			param: "k299", code: messages.InvalidRequest},
		"10,001 keys": {body: `{"model":"m1",` + msgs + `,"x":` + object(10_000, `"z":1`) + `}`,
			code: messages.TooLarge},
		"no messages": {body: `{"model":"m1"}`, param: "messages", code: messages.InvalidRequest},
		"messages empty": {body: `{"model":"m1","messages":[]}`, param: "messages",
			code: messages.InvalidRequest},
		"messages null": {body: `{"model":"m1","messages":null}`, param: "messages",
			code: messages.InvalidRequest},
		"messages an object": {body: `{"model":"m1","messages":{}}`, param: "messages",
			code: messages.InvalidRequest},
		"a message that is none": {body: `{"model":"m1","messages":[{"role":"user","content":"a"},"b"]}`,
			param: "messages[1]", code: messages.InvalidRequest},
		"too many messages": {body: `{"model":"m1","messages":` + list(api.MaxMessages+1, "{}") + `}`,
			param: "messages", code: messages.TooLarge},
		"stream a string": {body: `{"model":"m1","stream":"yes",` + msgs + `}`, param: "stream",
			code: messages.InvalidRequest},
		"stream null":          {body: `{"model":"m1","stream":null,` + msgs + `}`},
		"depth 64":             {body: deep(api.MaxDepth - 1)},
		"depth 65":             {body: deep(api.MaxDepth), code: messages.TooLarge},
		"depth 100000":         {body: strings.Repeat(`{"a":`, 100000), code: messages.TooLarge},
		"brackets in a string": {body: strings.Replace(apitest.GoodBody, "hi", strings.Repeat(`[{\"`, 100), 1)},
		"a million keys": {body: `{"model":"m1",` + msgs + `,"x":` + list(1_000_000, "1") + `}`,
			code: messages.TooLarge},
		"n a million": {body: `{"model":"m1","n":1000000,` + msgs + `}`, param: "n",
			code: messages.InvalidRequest},
		"n 0 is the model's to judge": {body: `{"model":"m1","n":0,` + msgs + `}`},
		"n 128":                       {body: `{"model":"m1","n":128,` + msgs + `}`},
		"max_tokens 1e30": {body: `{"model":"m1","max_tokens":1e30,` + msgs + `}`, param: "max_tokens",
			code: messages.InvalidRequest},
		"too many tools": {body: `{"model":"m1","tools":` + list(api.MaxTools+1, "{}") + `,` + msgs + `}`,
			param: "tools", code: messages.TooLarge},
		"too many stops": {body: `{"model":"m1","stop":` + list(api.MaxStops+1, `"a"`) + `,` + msgs + `}`,
			param: "stop", code: messages.TooLarge},
		"stop a string": {body: `{"model":"m1","stop":"END",` + msgs + `}`},
		"any text as a label": {body: `{"model":"m1","metadata":{"session_id":"a b\u0000` + strings.Repeat("é",
			400) + `"},` + msgs + `}`},
		"tenant in the body": {body: `{"model":"m1","tenant":"other","metadata":{"tenant":"other"},` + msgs + `}`},
	}
	d := &apitest.Entry{}
	g := start(t, d, nil)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := g.Chat(t, tt.body)
			if tt.code == "" {
				require.Equal(t, 200, got.StatusCode, got.Body)
				require.Equal(t, "default", d.Last(t).Tenant)
				return
			}
			got.IsFault(t, tt.code)
			require.Equal(t, tt.param, got.Param(), got.Body)
		})
	}
}

// metaOf runs the metadata rules on header lines and a body.
func metaOf(id api.Identity, body string, lines ...string) (pipeline.Request, *messages.Fault) {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.Add(name, value)
	}
	if f := api.KnownHeaders(slices.Collect(maps.Keys(h))); f != nil {
		return pipeline.Request{}, f
	}
	c, f := api.ParseChat([]byte(body))
	if f != nil {
		return pipeline.Request{}, f
	}
	return api.Metadata(h.Values, id, c, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	caller := api.Identity{Tenant: "ta", Role: api.RoleCaller}
	operator := api.Identity{Tenant: "ops", Role: api.RoleOperator}
	with := func(extra string) string { return strings.Replace(apitest.GoodBody, "{", "{"+extra+",", 1) }
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	type R = pipeline.Request
	tests := map[string]struct {
		id    *api.Identity
		body  string
		lines []string
		want  func(*R)
		code  messages.Code
		param string
	}{
		"nothing": {want: func(*R) {}},
		"all of a caller": {lines: []string{"Shallot-Session: s", "Shallot-Run: r", "Shallot-User: u", "Shallot-Agent: a",
			"X-Request-Id: x", "Idempotency-Key: k", "Shallot-Cache: refresh"}, want: func(r *R) {
			r.Session, r.Run, r.User, r.Agent, r.RequestID, r.IdempotencyKey, r.Cache = "s", "r", "u", "a", "x", "k", "refresh"
		}},
		"the body's session is a label (CX-4)": {body: with(`"metadata":{"session_id":"b c"}`),
			want: func(r *R) { r.Notes = label("b c") }},
		"a session is any text (CX-4)": {lines: []string{"Shallot-Session: Müller & Söhne / 会话 7"},
			want: func(r *R) { r.Session = "Müller & Söhne / 会话 7" }},
		"header before body": {body: with(`"metadata":{"session_id":"b"},"user":"bu"`),
			lines: []string{"Shallot-Session: h", "Shallot-User: hu"}, want: func(r *R) {
				r.Session, r.User, r.Notes = "h", "hu", label("b")
			}},
		"safety_identifier before user": {body: with(`"user":"u","safety_identifier":"si"`),
			want: func(r *R) { r.User = "si" }},
		"user":                    {body: with(`"user":"u"`), want: func(r *R) { r.User = "u" }},
		"user that cannot travel": {body: with(`"user":"J\u00f6rg M"`), want: func(*R) {}},
		"the key's user overrides": {id: &api.Identity{Tenant: "ta", Role: api.RoleCaller, User: "fixed"},
			body: with(`"user":"u"`), lines: []string{"Shallot-User: h"}, want: func(r *R) { r.User = "fixed" }},
		"metadata is no object": {body: with(`"metadata":"x"`), want: func(*R) {}},
		"256 characters": {lines: []string{"Shallot-Session: " + strings.Repeat("a", 256)},
			want: func(r *R) { r.Session = strings.Repeat("a", 256) }},
		"257 characters": {lines: []string{"Shallot-Session: " + strings.Repeat("a", 257)},
			code: messages.InvalidRequest, param: "Shallot-Session"},
		"empty": {lines: []string{"Shallot-Session: "}, code: messages.InvalidRequest,
			param: "Shallot-Session"},
		"blank inside": {lines: []string{"Shallot-User: a b"}, code: messages.InvalidRequest,
			param: "Shallot-User"},
		"not ASCII": {lines: []string{"Shallot-User: \u00e9"}, code: messages.InvalidRequest,
			param: "Shallot-User"},
		"twice": {lines: []string{"Idempotency-Key: a", "Idempotency-Key: a"},
			code: messages.InvalidRequest, param: "Idempotency-Key"},
		"internal": {lines: []string{"Shallot-Stage: pii"}, code: messages.InvalidRequest,
			param: "Shallot-Stage"},
		"unlisted is refused": {lines: []string{"Shallot-Role: operator", "Shallot-Call: x",
			"Shallot-Whatever: y", "Baggage: a=b"}, code: messages.InvalidRequest, param: "Shallot-Role"},
		"tenant of a caller": {lines: []string{"Shallot-Tenant: tb"}, code: messages.Forbidden,
			param: "Shallot-Tenant"},
		"own tenant": {lines: []string{"Shallot-Tenant: ta"}, want: func(*R) {}},
		"tenant of an operator": {id: &operator, lines: []string{"Shallot-Tenant: tb"},
			want: func(r *R) { r.Tenant, r.Role = "tb", api.RoleOperator }},
		"only of a caller": {lines: []string{"Shallot-Only: pii"}, code: messages.Forbidden,
			param: "Shallot-Only"},
		"only of an operator": {id: &operator, lines: []string{"Shallot-Only: pii, logging"},
			want: func(r *R) { r.Tenant, r.Role, r.Only = "ops", api.RoleOperator, []string{"pii", "logging"} }},
		"only of nothing": {id: &operator, lines: []string{"Shallot-Only: ,"},
			code: messages.InvalidRequest, param: "Shallot-Only"},
		"explain of a caller": {lines: []string{"Shallot-Explain: on"}, code: messages.Forbidden,
			param: "Shallot-Explain"},
		"explain of an operator": {id: &operator, lines: []string{"Shallot-Explain: on"},
			want: func(r *R) { r.Tenant, r.Role, r.Explain = "ops", api.RoleOperator, true }},
		"explain otherwise": {id: &operator, lines: []string{"Shallot-Explain: 1"},
			code: messages.InvalidRequest, param: "Shallot-Explain"},
		"cache otherwise": {lines: []string{"Shallot-Cache: no"}, code: messages.InvalidRequest,
			param: "Shallot-Cache"},
		"timeout": {lines: []string{"Shallot-Timeout: 30s"},
			want: func(r *R) { r.Deadline = now.Add(30 * time.Second) }},
		"timeout without unit": {lines: []string{"Shallot-Timeout: 30"}, code: messages.InvalidRequest,
			param: "Shallot-Timeout"},
		"timeout negative": {lines: []string{"Shallot-Timeout: -1s"}, code: messages.InvalidRequest,
			param: "Shallot-Timeout"},
		"timeout huge": {lines: []string{"Shallot-Timeout: 99999999999h"},
			code: messages.InvalidRequest, param: "Shallot-Timeout"},
		"deadline": {lines: []string{"Shallot-Deadline: 2026-01-02T03:05:05Z"},
			want: func(r *R) { r.Deadline = now.Add(time.Minute) }},
		"the earlier of both": {lines: []string{"Shallot-Timeout: 30s",
			"Shallot-Deadline: 2026-01-02T03:05:05Z"}, want: func(r *R) {
			r.Deadline = now.Add(30 * time.Second)
		}},
		"deadline otherwise": {lines: []string{"Shallot-Deadline: soon"}, code: messages.InvalidRequest,
			param: "Shallot-Deadline"},
		"deadline over": {lines: []string{"Shallot-Deadline: 2025-01-02T03:05:05Z"},
			code: messages.DeadlineExceeded, param: "Shallot-Deadline"},
		"deadline long over": {lines: []string{"Shallot-Deadline: 0001-01-01T00:00:00Z"},
			code: messages.DeadlineExceeded, param: "Shallot-Deadline"},
		"trace": {lines: []string{"traceparent: " + trace, "tracestate: a=1",
			"tracestate: b=2"}, want: func(r *R) {
			r.Trace = messages.Trace{Parent: trace, State: "a=1,b=2"}
		}},
		"trace of a later version": {lines: []string{"traceparent: 01" + trace[2:] + "-x"},
			want: func(r *R) { r.Trace.Parent = "01" + trace[2:] + "-x" }},
		"trace: upper case": {lines: []string{"traceparent: " + strings.ToUpper(trace)},
			want: func(*R) {}},
		"trace: zero id": {lines: []string{"traceparent: 00-" + strings.Repeat("0", 32) +
			"-b7ad6b7169203331-01", "tracestate: a=1"}, want: func(*R) {}},
		"trace: twice": {lines: []string{"traceparent: " + trace, "traceparent: " + trace},
			want: func(*R) {}},
		"trace: too long for version 00": {lines: []string{"traceparent: " + trace + "-x"}, want: func(*R) {}},
		"state too long is dropped": {lines: []string{"traceparent: " + trace,
			"tracestate: a=" + strings.Repeat("1", 600)}, want: func(r *R) {
			r.Trace.Parent = trace
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, body := caller, apitest.GoodBody
			if tt.id != nil {
				id = *tt.id
			}
			if tt.body != "" {
				body = tt.body
			}
			got, fault := metaOf(id, body, tt.lines...)
			if tt.code != "" {
				require.NotNil(t, fault)
				require.Equal(t, tt.code, fault.Code, fault.Message)
				require.Equal(t, tt.param, fault.Param)
				require.Contains(t, fault.Message, strings.TrimPrefix(tt.param, "Shallot-Deadline"))
				return
			}
			require.Nil(t, fault)
			want := pipeline.Request{Kind: messages.Model, Tenant: "ta", Role: api.RoleCaller}
			tt.want(&want)
			require.Equal(t, want, got)
		})
	}
}

func TestRequestIDIsEchoed(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := start(t, d, nil)
	require.Equal(t, "abc", g.Do(t, "GET", "/livez", "", "X-Request-Id: abc").Header.Get("X-Request-Id"))
	bad := g.Chat(t, apitest.GoodBody, "X-Request-Id: a", "X-Request-Id: b")
	bad.IsFault(t, messages.InvalidRequest)
	require.Equal(t, "X-Request-Id", bad.Param())
	g.Chat(t, apitest.GoodBody, "X-Request-Id: a b").IsFault(t, messages.InvalidRequest)
	g.Chat(t, apitest.GoodBody, "X-Request-Id: abc")
	require.Equal(t, "abc", d.Last(t).RequestID)
}

func FuzzMetadata(f *testing.F) {
	f.Add("Shallot-Session", "s")
	f.Add("Shallot-Timeout", "30s")
	f.Add("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("Shallot-Only", "a, b")
	f.Fuzz(func(t *testing.T, name, value string) {
		r, fault := api.Metadata(http.Header{http.CanonicalHeaderKey(name): {value}}.Values,
			api.Identity{Tenant: "t", Role: api.RoleOperator}, api.Chat{}, time.Now())
		if fault != nil {
			require.NotEmpty(t, fault.Param)
			return
		}
		for _, v := range append([]string{r.Session, r.Run, r.User, r.Agent, r.RequestID, r.IdempotencyKey, r.Tenant,
			r.Trace.Parent}, r.Only...) {
			require.True(t, v == "" || api.MetaValue(v), "%q", v)
		}
	})
}

func FuzzReadChat(f *testing.F) {
	f.Add([]byte(apitest.GoodBody))
	f.Add([]byte(`{"model":"\ud800","messages":[[]],"metadata":{"session_id":1}}`))
	f.Add([]byte(`{"messages":[{}],"model":"a"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if c, fault := api.ParseChat(body); fault == nil {
			require.NotEmpty(t, c.Model)
			require.NotEmpty(t, chat.Messages(body))
		}
	})
}

func BenchmarkReadChat(b *testing.B) {
	body := []byte(strings.Replace(apitest.GoodBody, "hi", strings.Repeat("some words ", 100), 1))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = api.ParseChat(body)
	}
}

func label(text string) messages.Notes {
	return messages.Notes{messages.NoteSessionLabel: rawjson.Encode(text)}
}

// object is an object with n keys, and one more.
func object(n int, more string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		fmt.Fprintf(&b, `"k%d":1,`, i)
	}
	return b.String() + more + "}"
}
