package model_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
)

const key = "sk-very-secret-0123456789"

// upstream is a provider that keeps what it received.
type upstream struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
}

func newUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.bodies = append(u.bodies, string(b))
		u.heads = append(u.heads, r.Header.Clone())
		u.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

// got returns what the provider received so far.
func (u *upstream) got() (bodies []string, heads []http.Header) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.bodies), slices.Clone(u.heads)
}

func (u *upstream) body(i int) string      { b, _ := u.got(); return b[i] }
func (u *upstream) head(i int) http.Header { _, h := u.got(); return h[i] }
func (u *upstream) count() int             { b, _ := u.got(); return len(b) }

func endpoint(t *testing.T, base string, change ...func(*model.Config)) *model.Endpoint {
	t.Helper()
	table, err := model.NewTable(model.Provider{Name: "up", BaseURL: base, APIKey: model.NewSecret(key),
		KeyEnv: "UP_KEY"}, model.Demo())
	require.NoError(t, err)
	c := model.Config{Table: table, Timeouts: model.Timeouts{Connect: 30 * time.Second,
		FirstToken: 30 * time.Second, Idle: 30 * time.Second, Total: time.Minute}}
	for _, f := range change {
		f(&c)
	}
	e, err := model.NewEndpoint(c)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// ask runs one call and returns it with the chunks that went out.
func ask(ctx context.Context, e *model.Endpoint, body string, stream bool) (*messages.Call, []string) {
	c := messages.NewCall(messages.Model, "t", []byte(body))
	c.Stream = stream
	return runCall(ctx, e, c)
}

func runCall(ctx context.Context, e *model.Endpoint, c *messages.Call) (*messages.Call, []string) {
	var out []string
	c.Slip, _ = pipeline.Enter(c.Slip)
	pipeline.RunTarget(ctx, e, c, func(chunk []byte) error {
		out = append(out, string(chunk))
		return nil
	})
	return c, out
}

func write(status int, kind, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const okReply = `{"id":"c","object":"chat.completion","created":9007199254740993,"model":"m","choices":[{` +
	`"index":0,"message":{"role":"assistant","content":"a\u00e9","refusal":null,"vendor":{"z":1,"a":2.50}},` +
	`"finish_reason":"stop"}],"usage":{"prompt_cache_hit_tokens":3,"total_tokens":4}}`

func TestEveryByteBothWays(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", okReply, "X-Request-Id", "up-7",
		"X-Ratelimit-Remaining-Requests", "9"))
	e := endpoint(t, u.URL+"/v1/")
	body := `{"model":"m","temperature":0,"stop":"END","top_k":0,"x":{"big":9007199254740993,"z":null,` +
		`"s":"\u00e9 <b>"},"store":false,"messages":[{"role":"user","content":[{"type":"text","text":"hi",` +
		`"cache_control":{"type":"ephemeral"}},{"type":"file","file":{"file_data":""}}]},{"role":"assistant",` +
		`"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":""},` +
		`"extra_content":{"s":"=="}}]}],"max_completion_tokens":10,"tools":[{"type":"custom","custom":{"name":"q"}}]}`
	c := messages.NewCall(messages.Model, "t", []byte(body))
	c.RequestID, c.Trace = "req-1", messages.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		State: "a=b"}
	c, _ = runCall(t.Context(), e, c)
	require.Nil(t, c.Fault)
	require.Equal(t, okReply, string(c.Reply()))
	require.Equal(t, 1, u.count())
	require.Equal(t, body, u.body(0))
	h := u.head(0)
	require.Equal(t, "Bearer "+key, h.Get("Authorization"))
	require.Equal(t, "req-1", h.Get("X-Request-Id"))
	require.Equal(t, c.Trace.Parent, h.Get("Traceparent"))
	require.Equal(t, "a=b", h.Get("Tracestate"))
	require.Equal(t, "application/json", h.Get("Content-Type"))
	var kept map[string]string
	require.True(t, c.Noted(messages.NoteUpstreamHeaders, &kept))
	require.Equal(t, map[string]string{"x-upstream-request-id": "up-7", "x-ratelimit-remaining-requests": "9"}, kept)
}

func TestPrefixIsTheOnlyEdit(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", okReply))
	e := endpoint(t, u.URL)
	c, _ := ask(t.Context(), e, `{"messages":[],"model":"up/org/m","n":1.0}`, false)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"messages":[],"model":"org/m","n":1.0}`, u.body(0))
	require.Equal(t, c.ID, u.head(0).Get("X-Request-Id"), "without a request id the call id is it")
	require.Empty(t, u.head(0).Get("Traceparent"))
}

func TestIdempotencyKeyUpstream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", okReply))
	e := endpoint(t, u.URL)
	c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m"}`))
	c.Slip.Stops = []messages.Stop{{Name: "model-fallback", After: true, Keep: true}}
	again := func(change func(*messages.Call)) string {
		d := c.Clone()
		d.Slip, _ = pipeline.Enter(d.Slip)
		change(d)
		pipeline.RunTarget(t.Context(), e, d, func([]byte) error { return nil })
		return u.head(u.count() - 1).Get("Idempotency-Key")
	}
	first := again(func(*messages.Call) {})
	require.NotEmpty(t, first)
	require.Equal(t, first, again(func(d *messages.Call) { d.Slip.Tries = 3 }), "a re-run of the same attempt")
	require.NotEqual(t, first, again(func(d *messages.Call) { d.Slip.Frames[0].Attempt = 2 }), "another attempt")
	require.NotEqual(t, first, again(func(d *messages.Call) { d.SetRequest([]byte(`{"model":"m2"}`)) }),
		"another model")
}

func TestFaultsByStatus(t *testing.T) {
	t.Parallel()
	body := func(kind, code string) string {
		return fmt.Sprintf(`{"error":{"message":"words %s","type":%q,"param":"messages","code":%q}}`, key, kind, code)
	}
	tests := map[string]struct {
		status  int
		body    string
		headers []string
		code    messages.Code
		check   func(*testing.T, *messages.Fault)
	}{
		"400": {400, body("invalid_request_error", "bad"), nil, messages.ProviderRejected,
			func(t *testing.T, f *messages.Fault) {
				require.Equal(t, 400, f.HTTPStatus())
				require.Equal(t, "invalid_request_error", f.Type)
				require.Equal(t, "bad", f.OpenAICode)
				require.Equal(t, "messages", f.Param)
				require.Equal(t, "words [redacted]", f.Message)
			}},
		"409": {409, body("x", "y"), nil, messages.ProviderRejected,
			func(t *testing.T, f *messages.Fault) { require.Equal(t, 409, f.HTTPStatus()) }},
		"413 html": {413, "<html>", nil, messages.ProviderRejected, nil},
		"422":      {422, body("x", "y"), nil, messages.ProviderRejected, nil},
		"context": {400, body("invalid_request_error", "context_length_exceeded"), nil, messages.ContextLength,
			nil},
		"words alone": {400, `{"error":{"message":"context_length_exceeded insufficient_quota"}}`, nil,
			messages.ProviderRejected, nil},
		"401": {401, body("invalid_request_error", "invalid_api_key"), nil, messages.ProviderAuth,
			func(t *testing.T, f *messages.Fault) {
				require.Contains(t, f.Detail, "UP_KEY")
				require.NotContains(t, f.Message, "UP_KEY")
				require.Equal(t, 502, f.HTTPStatus())
			}},
		"403": {403, "no", nil, messages.ProviderAuth, nil},
		"402": {402, "pay", nil, messages.ProviderQuota, nil},
		"404 ollama": {404, `{"error":"model 'x' not found"}`, nil, messages.ModelNotFound,
			func(t *testing.T, f *messages.Fault) { require.Contains(t, f.Detail, "model 'x' not found") }},
		"429 quota": {429, body("insufficient_quota", "x"), nil, messages.ProviderQuota, nil},
		"429 seconds": {429, body("requests", "rate_limit_exceeded"),
			[]string{"Retry-After", "7", "X-RateLimit-Reset-Requests", "1s"}, messages.ProviderLimited,
			func(t *testing.T, f *messages.Fault) {
				require.Equal(t, 7*time.Second, f.RetryAfter)
				require.Equal(t, map[string]string{"x-ratelimit-reset-requests": "1s"}, f.Headers)
				require.Equal(t, "requests", f.Type)
			}},
		"429 ms": {429, "", []string{"Retry-After-Ms", "250", "Retry-After", "1"}, messages.ProviderLimited,
			func(t *testing.T, f *messages.Fault) {
				require.Equal(t, 250*time.Millisecond, f.RetryAfter)
				require.Equal(t, "250", f.Headers["retry-after-ms"])
			}},
		"503 date": {503, "", []string{"Retry-After", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)},
			messages.ProviderError, func(t *testing.T, f *messages.Fault) {
				require.InDelta(t, 60, f.RetryAfter.Seconds(), 5)
			}},
		"429 key in headers": {429, "", []string{"X-Request-Id", "for " + key, "X-Ratelimit-Reset-Tokens", key},
			messages.ProviderLimited, func(t *testing.T, f *messages.Fault) {
				require.Len(t, f.Headers, 2)
			}},
		"408":            {408, "", nil, messages.ProviderTimeout, nil},
		"500":            {500, body("server_error", ""), nil, messages.ProviderError, nil},
		"502 html":       {502, "<html><h1>502</h1></html>", nil, messages.ProviderError, nil},
		"302":            {302, "", []string{"Location", "http://127.0.0.1:1/"}, messages.ProviderBadReply, nil},
		"200 html":       {200, "<html>hello</html>", nil, messages.ProviderBadReply, nil},
		"200 broken":     {200, `{"choices":[`, nil, messages.ProviderBadReply, nil},
		"200 no choices": {200, `{"choices":[]}`, nil, messages.ProviderBadReply, nil},
		"200 null":       {200, `{"choices":[null]}`, nil, messages.ProviderBadReply, nil},
		"200 a text":     {200, `{"choices":[{"index":0,"message":"hi"}]}`, nil, messages.ProviderBadReply, nil},
		"200 empty":      {200, ``, nil, messages.ProviderBadReply, nil},
		"200 with error": {200, `{"error":{"message":"slow","code":429}}`, nil, messages.ProviderLimited, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, write(tt.status, "application/json", tt.body, tt.headers...))
			for _, stream := range []bool{false, true} {
				c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m"}`, stream)
				require.NotNil(t, c.Fault)
				require.Equal(t, tt.code, c.Fault.Code, c.Fault.Message)
				require.True(t, c.Fault.OfTarget())
				require.False(t, c.HasReply())
				require.Empty(t, out)
				require.NotContains(t, fmt.Sprintf("%+v %s", c.Fault, c.Fault.Body()), key)
				require.Greater(t, len(c.Fault.Message), 4)
				if tt.check != nil {
					tt.check(t, c.Fault)
				}
			}
			require.Equal(t, 2, u.count(), "one run, one request")
		})
	}
}

func TestConnectionFaults(t *testing.T) {
	t.Parallel()
	t.Run("refused is provably unsent", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		require.NoError(t, l.Close())
		c, _ := ask(t.Context(), endpoint(t, "http://"+addr), `{"model":"m"}`, false)
		require.Equal(t, messages.ProviderError, c.Fault.Code)
		require.True(t, c.Fault.Unsent)
		require.NotContains(t, c.Fault.Message, "/chat/completions")
	})
	t.Run("reset before the first byte is not", func(t *testing.T) {
		t.Parallel()
		u := newUpstream(t, reset)
		c, _ := ask(t.Context(), endpoint(t, u.URL), `{"model":"m"}`, false)
		require.Equal(t, messages.ProviderError, c.Fault.Code)
		require.False(t, c.Fault.Unsent)
		require.Equal(t, 1, u.count())
	})
	t.Run("a reply that breaks off", func(t *testing.T) {
		t.Parallel()
		u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"choices":[`)
			_ = http.NewResponseController(w).Flush()
			reset(w, r)
		})
		c, _ := ask(t.Context(), endpoint(t, u.URL), `{"model":"m"}`, false)
		require.Equal(t, messages.ProviderError, c.Fault.Code)
	})
	t.Run("total time", func(t *testing.T) {
		t.Parallel()
		u := newUpstream(t, hang)
		e := endpoint(t, u.URL, func(c *model.Config) { c.Timeouts.Total = 50 * time.Millisecond })
		c, _ := ask(t.Context(), e, `{"model":"m"}`, false)
		require.Equal(t, messages.ProviderTimeout, c.Fault.Code)
		require.False(t, c.Fault.Unsent)
		require.Contains(t, c.Fault.Detail, "models.timeouts.total")
	})
	t.Run("the call's own deadline is not a fault of the provider", func(t *testing.T) {
		t.Parallel()
		u := newUpstream(t, hang)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c, _ := ask(ctx, endpoint(t, u.URL), `{"model":"m"}`, true)
		require.Equal(t, messages.DeadlineExceeded, c.Fault.Code)
	})
	t.Run("cancel reaches the provider (FB-10)", func(t *testing.T) {
		t.Parallel()
		began, gone := make(chan struct{}), make(chan struct{})
		u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			sse(w, chunkText("a"))
			close(began)
			<-r.Context().Done()
			close(gone)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-began; cancel(pipeline.ErrCancelled) }()
		c, _ := ask(ctx, endpoint(t, u.URL), `{"model":"m"}`, true)
		require.Equal(t, messages.Cancelled, c.Fault.Code)
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatal("the provider still works")
		}
	})
}

// reset closes the connection with a RST.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// sse writes events and flushes.
func sse(w http.ResponseWriter, chunks ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, c := range chunks {
		_, _ = io.WriteString(w, "data: "+c+"\n\n")
	}
	_ = http.NewResponseController(w).Flush()
}

func chunkText(text string) string {
	return fmt.Sprintf(`{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{`+
		`"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1")
	c, _ := ask(t.Context(), e, `not json`, false)
	require.Equal(t, messages.InvalidRequest, c.Fault.Code)
	c, _ = ask(t.Context(), e, `[1]`, false)
	require.Equal(t, messages.InvalidRequest, c.Fault.Code)
	c, _ = ask(t.Context(), e, `{}`, false)
	require.Equal(t, messages.ModelNotFound, c.Fault.Code)
	c, _ = ask(t.Context(), e, `{"model":"demo/nope"}`, false)
	require.Equal(t, messages.ModelNotFound, c.Fault.Code)
	require.True(t, strings.Contains(c.Fault.Message, "demo/echo"))
}
