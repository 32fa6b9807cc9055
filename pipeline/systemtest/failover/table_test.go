package failover

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// row is one fault of an upstream and what a caller gets.
type row struct {
	name string
	play play
	// plain and stream are how a call ends where no standby is left: a code, or empty for a good reply. A stream that
	// showed a part of the reply ends with stream_cut; cut is that part.
	plain, stream messages.Code
	cut           string
	text          string // of a good reply; as a prefix where the fault has no end
	base          string // of a provider of its own
	only          string // stream or plain
}

func faultRows(t *testing.T) []row {
	same := func(name string, code messages.Code, p play) row {
		return row{name: name, play: p, plain: code, stream: code}
	}
	var rows []row
	for status, code := range map[int]messages.Code{
		401: messages.ProviderAuth, 403: messages.ProviderAuth, 404: messages.ModelNotFound, 408: messages.ProviderTimeout,
		400: messages.ProviderRejected, 405: messages.ProviderError, 407: messages.ProviderAuth, 410: messages.ModelNotFound,
		409: messages.ProviderRejected, 413: messages.ProviderRejected, 422: messages.ProviderRejected,
		500: messages.ProviderError, 502: messages.ProviderError, 503: messages.ProviderError, 529: messages.ProviderError,
	} {
		rows = append(rows, same("status-"+strconv.Itoa(status), code,
			answers(status, "application/json", `{"error":{"message":"no"}}`)))
	}
	stolen := newUpstream(t, nil)
	t.Cleanup(func() { require.Empty(t, stolen.names(), "a redirect was followed") })
	for _, status := range []int{301, 302, 303, 307, 308} {
		rows = append(rows, same("redirect-"+strconv.Itoa(status), messages.ProviderBadReply, redirects(status, stolen)))
	}
	json := func(body string) play { return answers(200, "application/json", body) }
	rows = append(rows,
		same("limited-seconds", messages.ProviderLimited, limited("7")),
		same("limited-date", messages.ProviderLimited, limited(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))),
		same("limited", messages.ProviderLimited, limited("")),
		same("quota", messages.ProviderQuota, answers(429, "application/json",
			`{"error":{"message":"no","code":"insufficient_quota"}}`)),

		same("status-without-its-words", messages.ProviderError, then(func(w http.ResponseWriter, _ *http.Request, _ bool) {
			w.WriteHeader(http.StatusServiceUnavailable)
			flush(w)
		}, silence)),
		same("status-with-a-broken-body", messages.ProviderAuth,
			then(announces, func(w http.ResponseWriter, _ *http.Request, _ bool) {
				w.WriteHeader(http.StatusUnauthorized)
			}, resets)),

		same("reset-before-headers", messages.ProviderError,
			func(w http.ResponseWriter, _ *http.Request, _ bool) { cutOff(w) }),
		same("reset-after-headers", messages.ProviderError, then(begins, resets)),
		row{name: "reset-in-body", plain: messages.ProviderError, stream: messages.StreamCut, cut: "a part",
			play: as(then(begins, writes(`{"choices":[{"mess`), resets), then(sends(delta("a part")), resets))},
		same("silent-before-headers", messages.ProviderTimeout, silence),
		same("silent-after-headers", messages.ProviderTimeout, then(begins, silence)),
		row{name: "silent-in-body", plain: messages.ProviderTimeout, stream: messages.StreamCut, cut: "a part",
			play: as(then(begins, writes(`{"choices":[{"mess`), silence), then(sends(delta("a part")), silence))},
		same("silent-but-for-comments", messages.ProviderTimeout, then(begins, never(": wait\n\n"))),
		same("byte-by-byte", messages.ProviderTimeout,
			then(begins, as(drips(whole("slow", "stop")), drips("data: "+delta("slow")+"\n\n")))),
		row{name: "endless", plain: messages.ProviderTimeout, stream: messages.StreamCut, cut: "on and ",
			play: as(then(begins, never(" ")), then(begins, never("data: "+delta("on and ")+"\n\n")))},

		same("html", messages.ProviderBadReply, answers(200, "text/html", "<html>welcome</html>")),
		same("html-without-a-type", messages.ProviderBadReply, answers(200, "", "<html>welcome</html>")),
		same("error-object", messages.ProviderError, json(`{"error":{"message":"no","type":"server_error"}}`)),
		same("error-text", messages.ProviderError, json(`{"error":"no"}`)),
		same("empty-body", messages.ProviderBadReply, json("")),
		same("no-content", messages.ProviderBadReply, answers(204, "", "")),
		same("no-choices", messages.ProviderBadReply,
			as(json(`{"id":"c","choices":[]}`), sends(`{"id":"c","choices":[]}`, "[DONE]"))),
		same("broken-json", messages.ProviderBadReply, json(`{"choices":[`)),
		same("broken-event", messages.ProviderBadReply, as(json(`{"choices":[`), sends(`{"choices":[`))),
		same("cut-body", messages.ProviderError, as(then(announces, json(whole("cut", "stop"))),
			then(announces, begins, writes("data: {")))),
		same("zipped-badly", messages.ProviderBadReply, then(func(w http.ResponseWriter, _ *http.Request, _ bool) {
			w.Header().Set("Content-Encoding", "gzip")
		}, json(whole("zip", "stop")))),
		same("unknown-coding", messages.ProviderBadReply, then(func(w http.ResponseWriter, _ *http.Request, _ bool) {
			w.Header().Set("Content-Encoding", "zstd")
		}, json(whole("zstd", "stop")))),
		row{name: "huge", plain: messages.ProviderBadReply, stream: messages.ProviderBadReply,
			play: as(then(begins, huge(`{"choices":[{"message":{"content":"`, `"}}]}`)),
				then(begins, huge(`data: {"choices":[{"delta":{"content":"`, "\"}}]}\n\n")))},
		row{name: "huge-error", plain: messages.ProviderError, stream: messages.ProviderError,
			play: func(w http.ResponseWriter, r *http.Request, s bool) {
				w.WriteHeader(http.StatusBadGateway)
				huge("", "")(w, r, s)
			}},
	)
	streams := func(name string, code messages.Code, cut, text string, p play) row {
		return row{name: name, stream: code, cut: cut, text: text, play: p, only: "stream"}
	}
	const errorEvent = `{"error":{"message":"no","type":"server_error","code":"overloaded"}}`
	return append(rows,
		streams("without-done", "", "", "hi", sends(delta("hi"), finish("stop"))),
		streams("done-twice", "", "", "hi", sends(delta("hi"), finish("stop"), "[DONE]", "[DONE]")),
		streams("error-event", messages.ProviderError, "", "", sends(errorEvent)),
		streams("error-event-after-the-role", messages.ProviderError, "", "",
			sends(chunk(`{"role":"assistant","content":""}`, "null"), errorEvent)),
		streams("error-event-after-text", messages.StreamCut, "hi", "", sends(delta("hi"), errorEvent)),
		streams("half-an-event-at-the-end", messages.StreamCut, "hi", "",
			then(sends(delta("hi")), writes(`data: {"choices":[{"de`))),
		streams("half-an-event-after-the-end", "", "", "hi",
			then(sends(delta("hi"), finish("stop")), writes(`data: {"usage":{"tot`))),
		streams("half-an-event-alone", messages.ProviderBadReply, "", "", then(begins, writes(`data: {"choices":[{"de`))),
		streams("without-a-finish-reason", messages.StreamCut, "hi", "", sends(delta("hi"), "[DONE]")),
		streams("done-alone", messages.ProviderBadReply, "", "", sends("[DONE]")),
		streams("tool-deltas-without-index", "", "", "",
			sends(toolDelta("c1", `{"a":`), toolDelta("", `1}`), finish("tool_calls"), "[DONE]")),
		streams("a-plain-reply", "", "", "hi", json(whole("hi", "stop"))),
	)
}

// elsewhere are faults of a provider of its own: below HTTP.
func elsewhere(t *testing.T) []row {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never says a word of TLS
	require.NoError(t, err)
	t.Cleanup(func() { _ = mute.Close() })
	strange := httptest.NewTLSServer(http.NotFoundHandler()) // a certificate that nobody trusts
	strange.Config.ErrorLog = discard()
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	// nolint:gosec // the fault under test
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS10, MinVersion: tls.VersionTLS10}
	old.Config.ErrorLog = discard()
	old.StartTLS()
	t.Cleanup(strange.Close)
	t.Cleanup(old.Close)
	on := func(name, base string, code messages.Code) row {
		return row{name: name, base: base, plain: code, stream: code}
	}
	return []row{
		on("connect-refused", "http://127.0.0.1:"+pace.Port(t), messages.ProviderError),
		on("connect-silent", "http://"+fullListener(t), messages.ProviderTimeout),
		on("tls-silent", "https://"+mute.Addr().String(), messages.ProviderTimeout),
		on("tls-strange", strange.URL, messages.ProviderError),
		on("tls-old", old.URL, messages.ProviderError),
		on("no-such-name", "http://no-such-host.invalid", messages.ProviderError),
	}
}

func TestUpstreamFaults(t *testing.T) {
	t.Parallel()
	rows, plays := append(faultRows(t), elsewhere(t)...), map[string]play{}
	for _, r := range rows {
		plays[r.name] = r.play
	}
	u := newUpstream(t, plays)
	// Times are short where a fault ends with them, and only there: a slow machine needs time to be answered. Of rows that
	// begin well only the time that ends them is.
	const short = ", timeouts: {connect: 1s, first-byte: 1s, first-token: 1s, idle: 1s, attempt: 2s}"
	late := map[string]string{"silent-in-body": ", timeouts: {idle: 1s}", "endless": ", timeouts: {attempt: 4s}"}
	var slow []string
	providers := ""
	for _, r := range rows {
		timed := r.plain == messages.ProviderTimeout || r.stream == messages.ProviderTimeout
		switch {
		case strings.Contains(r.base, "://") && timed:
			providers += provider(r.name, r.base, r.name, short)
		case strings.Contains(r.base, "://"):
			providers += provider(r.name, r.base, r.name)
		case late[r.name] != "":
			providers += provider(r.name, u.URL, r.name, late[r.name])
		case timed:
			slow = append(slow, r.name)
		}
	}
	providers += provider("slow", u.URL, strings.Join(slow, ", "), short) + provider("up", u.URL, `"*"`) +
		provider("other", newUpstream(t, nil).URL, "standby")
	alone := newSystem(t, "models:\n  providers:\n"+providers+"agent: {interceptor: {model-fallback: {enabled: false}}}\n",
		nil)
	helped := newSystem(t, configured("standby", providers), nil)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, stream bool) {
				t.Parallel()
				if r.only == "stream" && !stream {
					t.Skip("a fault of streams")
				}
				code := r.plain
				if stream {
					code = r.stream
				}
				r.ends(t, alone.ask(r.name, stream), code)
				a := helped.ask(r.name, stream)
				if code == "" || !code.Info().Fallback {
					r.ends(t, a, code)
					return
				}
				require.True(t, a.standby(), "%s: %s", a.fault, a.body)
				require.Contains(t, a.header.Get("Shallot-Degraded"), "model=standby")
			})
		})
	}
}

// ends checks an answer that is the upstream's own.
func (r row) ends(t *testing.T, a answer, code messages.Code) {
	t.Helper()
	require.Equal(t, string(code), a.fault, a.body)
	switch {
	case code == "":
		require.Equal(t, r.text, a.text)
		require.NotEmpty(t, a.finish)
	case code == messages.StreamCut:
		require.True(t, strings.HasPrefix(a.text, r.cut), a.text)
		require.Empty(t, a.finish, "a cut stream does not look like a whole one")
		require.Contains(t, a.body, `"code":"stream_cut"`)
	default:
		require.Empty(t, a.text)
		status := code.Info().Status
		if code == messages.ProviderRejected {
			status, _ = strconv.Atoi(strings.TrimPrefix(r.name, "status-"))
		}
		require.Equal(t, strconv.Itoa(status), a.status)
	}
	if strings.HasPrefix(r.name, "limited-") {
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
}
