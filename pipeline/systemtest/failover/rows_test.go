package failover

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

const secret = "sk-our-own-key-0123456789"

func status(code int, body string, headers ...string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		write(w, code, "application/json", body)
	}
}

func both(t *testing.T, run func(t *testing.T, stream bool)) {
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "stream"}[stream], func(t *testing.T) { run(t, stream) })
	}
}

func TestAKeyAloneIsNoStandby(t *testing.T) { // (FO-1)
	t.Parallel()
	for _, code := range []int{401, 429, 500} {
		u := newUpstream(t, map[string]play{"gpt-4o": status(code, `{"error":{"message":"no"}}`)})
		s := newSystem(t, "", map[string]string{"OPENAI_API_KEY": secret, "OPENAI_BASE_URL": u.URL + "/v1"})
		both(t, func(t *testing.T, stream bool) {
			a := s.ask("gpt-4o", stream)
			require.NotEmpty(t, a.fault)
			require.Empty(t, a.text)
		})
		require.Equal(t, []string{"gpt-4o", "gpt-4o"}, u.names(), "status %d: one request for each of the two calls", code)
	}
}

func TestAProviderThatRefusesIsNotAskedAgain(t *testing.T) { // (FO-1)
	t.Parallel()
	for name, refusal := range map[string]play{
		"key":         status(401, `{"error":{"message":"no"}}`),
		"quota":       status(429, `{"error":{"message":"no","code":"insufficient_quota"}}`),
		"retry-after": status(429, `{"error":{"message":"no"}}`, "Retry-After", "3600"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, map[string]play{"a": refusal, "b": refusal})
			v := newUpstream(t, nil)
			s := newSystem(t, configured("b, standby", provider("up", u.URL, "a, b")+provider("other", v.URL, "standby")), nil)
			a := s.ask("a", false)
			require.True(t, a.standby(), a.body)
			require.Equal(t, []string{"a"}, u.names(), "the standby of the same provider is left out")
		})
	}
}

func TestPauseBetweenTriesAtOneProvider(t *testing.T) { // (FO-1)
	t.Parallel()
	u := newUpstream(t, map[string]play{"a": status(500, ""), "b": status(500, "")})
	s := newSystem(t, configured("b", provider("up", u.URL, "a, b")), nil)
	a := s.ask("a", false)
	require.Equal(t, "provider_error", a.fault)
	require.Equal(t, []string{"a", "b"}, u.names())
	require.Greater(t, u.gap(), 200*time.Millisecond)
}

func TestASilentProviderLeavesTimeForTheStandby(t *testing.T) { // (FO-2)
	t.Parallel()
	u := newUpstream(t, map[string]play{"silent": silence})
	s := newSystem(t, configured("standby", provider("up", u.URL, "silent")+provider("other", newUpstream(t, nil).URL,
		"standby")), nil)
	t.Run("both", func(t *testing.T) {
		both(t, func(t *testing.T, stream bool) {
			t.Parallel()
			a := s.ask("silent", stream, "Shallot-Timeout", "10s")
			require.True(t, a.standby(), a.body)
		})
	})
	require.Equal(t, 2, u.count("silent"), "a silent route is not asked again")
}

// silence takes the request and says nothing until the other side goes.
func silence(_ http.ResponseWriter, r *http.Request, _ bool) { <-r.Context().Done() }

func TestWhatIsAnAnswerIsNotReplaced(t *testing.T) { // (FO-3)
	t.Parallel()
	message := func(finish, message string) play {
		return func(w http.ResponseWriter, _ *http.Request, stream bool) {
			if stream {
				events(w, chunk(message, "null"), chunk("{}", finish), "[DONE]")
				return
			}
			write(w, 200, "application/json", `{"id":"c","choices":[{"index":0,"message":`+message+`,"finish_reason":`+finish+
				`}]}`)
		}
	}
	plays := map[string]play{
		"filtered": message(`"content_filter"`, `{"role":"assistant","content":""}`),
		"thinking": message(`"length"`, `{"role":"assistant","content":"","reasoning_content":"hm"}`),
		"thought":  message(`"stop"`, `{"role":"assistant","content":null,"reasoning":"hm"}`),
		"length":   message(`"length"`, `{"role":"assistant","content":""}`),
		"image": message(`"stop"`,
			`{"role":"assistant","content":"","images":[{"type":"image_url","image_url":{"url":"data:x"}}]}`),
		"part":  message(`"stop"`, `{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}`),
		"cited": message(`"stop"`, `{"role":"assistant","content":"","annotations":[{"type":"url_citation"}]}`),
		"empty": message(`"stop"`, `{"role":"assistant","content":""}`),
		"none":  message(`null`, `{"role":"assistant","content":null,"refusal":null,"tool_calls":[],"images":[]}`),
	}
	u := newUpstream(t, plays)
	s := newSystem(t, configured("standby", provider("up", u.URL, `"*"`)+provider("other", newUpstream(t, nil).URL,
		"standby")), nil)
	for name := range plays {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, stream bool) {
				a := s.ask(name, stream)
				require.Empty(t, a.fault, a.body)
				empty := name == "empty" || name == "none"
				require.Equal(t, empty, a.standby(), a.body)
			})
		})
	}
}

func TestANameThatNobodyServes(t *testing.T) { // (FO-4)
	t.Parallel()
	u := newUpstream(t, map[string]play{"gone": status(404, `{"error":{"message":"gone","code":"model_not_found"}}`)})
	s := newSystem(t, configured("standby", provider("up", u.URL, "gone, standby")), nil)
	both(t, func(t *testing.T, stream bool) {
		a := s.ask("nobody-has-this", stream)
		require.Equal(t, "model_not_found", a.fault, a.body)
		require.Equal(t, "404", a.status)
		require.Empty(t, a.text)
		require.True(t, s.ask("gone", stream).standby(), "the provider's own answer for a name that it is to serve")
	})
	require.Zero(t, u.count("nobody-has-this"))
}

func TestAKeptConnectionThatClosesIsNoFailure(t *testing.T) { // (FO-5)
	t.Parallel()
	var n atomic.Int64
	u := newUpstream(t, nil)
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 2 { // it took the request on a kept connection, and goes as if it had been idle
			cutOff(w)
			return
		}
		u.ServeHTTP(w, r)
	})
	s := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "a"), nil)
	for range 3 {
		a := s.ask("a", false)
		require.Equal(t, "a", a.text, a.body)
	}
	require.EqualValues(t, 4, n.Load())
}

// cutOff closes the connection without a word.
func cutOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestInvalidUTF8(t *testing.T) { // (FO-6)
	t.Parallel()
	u := newUpstream(t, map[string]play{"bad": func(w http.ResponseWriter, _ *http.Request, stream bool) {
		if stream {
			events(w, strings.Replace(delta("a?b"), "?", "\xff\xfe", 1), finish("stop"), "[DONE]")
			return
		}
		write(w, 200, "application/json", strings.Replace(whole("a?b", "stop"), "?", "\xff", 1))
	}})
	s := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "bad"), nil)
	require.Equal(t, "provider_bad_reply", s.ask("bad", false).fault)
	a := s.ask("bad", true)
	require.Empty(t, a.fault)
	require.Equal(t, "a\uFFFDb", a.text)
}

func TestZippedRepliesAreRead(t *testing.T) { // (FO-7)
	t.Parallel()
	u := newUpstream(t, map[string]play{"zip": func(w http.ResponseWriter, _ *http.Request, stream bool) {
		body, kind := whole("zipped", "stop"), "application/json"
		if stream {
			body, kind = "data: "+delta("zipped")+"\n\ndata: "+finish("stop")+"\n\ndata: [DONE]\n\n", "text/event-stream"
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(body))
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		write(w, 200, kind, b.String())
	}})
	s := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "zip"), nil)
	both(t, func(t *testing.T, stream bool) {
		a := s.ask("zip", stream)
		require.Equal(t, "zipped", a.text, a.body)
	})
}

func TestRunsOfACallAreBounded(t *testing.T) { // (FO-8)
	t.Parallel()
	u := newUpstream(t, map[string]play{"a": status(500, "")})
	again := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Again(0), nil }
	greedy := pipeline.Stage{Name: "greedy", Kind: messages.Model, Order: 50, Keep: true, After: again}
	s := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "a, ok"), nil, greedy)
	a := s.ask("a", false)
	require.Equal(t, "provider_error", a.fault)
	require.Equal(t, 10, u.count("a"))
	require.Equal(t, "ok", s.ask("ok", false).text, "a stage that is never content: the last reply")
	require.Equal(t, 10, u.count("ok"))
}

func TestSecretsAndAddressesStayInside(t *testing.T) { // (SE-6, CX-9)
	t.Parallel()
	echo := fmt.Sprintf(`{"error":{"message":"bad %[1]s","type":"%[1]s","code":"code-%[1]s","param":"p-%[1]s"}}`, secret)
	plays := map[string]play{}
	for _, code := range []int{400, 401, 404, 413, 422, 429, 500, 503} {
		plays[fmt.Sprintf("s%d", code)] = status(code, echo, "X-Request-Id", "r-"+secret)
	}
	u := newUpstream(t, plays)
	providers := provider("up", u.URL, `"s*"`, ", api-key-env: UP_SECRET_KEY") +
		provider("down", "http://127.0.0.1:"+pace.Port(t), "refused", ", api-key-env: UP_SECRET_KEY") +
		provider("nowhere", "http://no-such-host.invalid", "lost", ", api-key-env: UP_SECRET_KEY")
	s := newSystem(t, "models:\n  providers:\n"+providers, map[string]string{"UP_SECRET_KEY": secret})
	plays["refused"], plays["lost"] = nil, nil
	for name := range plays {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, stream bool) {
				a := s.ask(name, stream)
				require.NotEmpty(t, a.fault)
				all := a.body + fmt.Sprint(a.header)
				for _, word := range []string{secret, "127.0.0.1", "no-such-host", "dial", "lookup", "UP_SECRET_KEY"} {
					require.NotContains(t, all, word)
				}
			})
		})
	}
	log := s.log.String()
	require.NotContains(t, log, secret)
	for _, word := range []string{"bad [redacted]", "status=503", "connection refused", "no-such-host"} {
		require.Contains(t, log, word, "an operator finds the reason")
	}
}
