package toolbox_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

func httpTool(url string, p tool.Policy) *tool.Definition {
	d := goTool("x", p)
	d.Executor = tool.Executor{Kind: "http", URL: url}
	return d
}

func execute(t *testing.T, e toolbox.Executor, d *tool.Definition) (toolbox.Result, error) {
	t.Helper()
	return e.Execute(t.Context(), toolbox.Invocation{Tool: d, Arguments: []byte(`{}`), CallID: "c1", IdempotencyKey: "k1"})
}

func TestGoexit(t *testing.T) {
	t.Parallel()
	no := false
	for _, p := range []tool.Policy{{}, {Idempotent: &no}} {
		target, pool := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
			runtime.Goexit()
			return toolbox.Result{}, nil
		}, goTool("x", p))
		c := call("x", `{}`)
		f := faultOf(t, target.Do(t.Context(), c, noEmit))
		want := messages.ToolError
		if p.Idempotent != nil {
			want = messages.OutcomeUnknown
		}
		require.Equal(t, want, f.Code, "a tool that ends without an answer has not succeeded")
		require.False(t, c.HasReply())
		require.Eventually(t, func() bool { return pool.Running() == 0 }, 30*time.Second, time.Millisecond)
	}
}

// What an HTTP tool may answer, and what each proves.
func TestHostileHTTP(t *testing.T) {
	t.Parallel()
	plain := func(s string) func(int, []byte, net.Conn) {
		return func(_ int, _ []byte, c net.Conn) { fmt.Fprint(c, s); _ = c.Close() }
	}
	cases := map[string]struct {
		answer func(int, []byte, net.Conn)
		code   messages.Code
		text   string
	}{
		"reset before headers": {answer: plain(""), code: messages.ToolNetwork, text: "closed"},
		"half a header":        {answer: plain("HTTP/1.1 200 O"), code: messages.ToolNetwork},
		"half a body": {answer: plain("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
			code: messages.ToolNetwork},
		"half a chunk": {answer: plain("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf"),
			code: messages.ToolNetwork},
		"no HTTP": {answer: plain("SSH-2.0-OpenSSH_9.6\r\n"), code: messages.ToolNetwork},
		"says gzip, is none": {answer: plain("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain"),
			code: messages.ToolNetwork},
		"503, come again": {answer: plain("HTTP/1.1 503 X\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolNetwork},
		"503 of a proxy": {answer: plain("HTTP/1.1 503 X\r\nContent-Length: 57\r\n\r\n" +
			"upstream connect error or disconnect/reset before headers"), code: messages.ToolNetwork},
		"429": {answer: plain("HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolNetwork},
		"502": {answer: plain("HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolNetwork},
		"500 in HTML": {answer: plain("HTTP/1.1 500 X\r\nContent-Type: text/html\r\nContent-Length: 17\r\n\r\n" +
			"<html>oops</html>"), code: messages.ToolError, text: "oops"},
		"303 to somewhere": {answer: plain("HTTP/1.1 303 X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolError, text: "redirect"},
		"a redirect to itself": {answer: plain("HTTP/1.1 307 X\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolError, text: "redirect"},
		"a redirect to nowhere": {answer: plain("HTTP/1.1 307 X\r\nContent-Length: 0\r\n\r\n"), code: messages.ToolError,
			text: "redirect"},
		"a redirect to bad escapes": {answer: plain("HTTP/1.1 307 X\r\nLocation: http://%zz/\r\nContent-Length: 0\r\n\r\n"),
			code: messages.ToolNetwork},
		"endless": {answer: func(_ int, _ []byte, c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
			for b := []byte(strings.Repeat("x", 1<<20)); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}, code: messages.ToolError, text: "more than"},
	}
	for name, x := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := apitest.Conns(t, x.answer)
			e := toolbox.NewHTTPExecutor()
			defer e.Close()
			_, err := execute(t, e, httpTool(url, tool.Policy{}))
			f := faultOf(t, err)
			require.Equal(t, x.code, f.Code, f.Message)
			require.False(t, f.Unsent, f.Message)
			require.Contains(t, f.Message, x.text)
			require.NotContains(t, f.Message, "cannot be reached", "it was")
			t.Log(f.Message)
		})
	}
}

// What went wrong before the connection stood proves that nothing was sent, whatever its name.
func TestHTTPNothingWasSent(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer secure.Close()
	plain, _ := apitest.Conns(t, func(int, []byte, net.Conn) {})
	for name, url := range map[string]string{
		"unknown authority": secure.URL,
		"no TLS over there": "https" + strings.TrimPrefix(plain, "http"),
		"name of nobody":    "http://no-such-host.invalid/",
		"nobody listens":    "http://127.0.0.1:1/",
	} {
		t.Run(name, func(t *testing.T) {
			e := toolbox.NewHTTPExecutor()
			defer e.Close()
			_, err := execute(t, e, httpTool(url, tool.Policy{}))
			f := faultOf(t, err)
			require.Equal(t, messages.ToolNetwork, f.Code, f.Message)
			require.True(t, f.Unsent, f.Message)
			t.Log(f.Message)
		})
	}
}

// A server that trickles holds its slot no longer than the attempt's time.
func TestHTTPSlowLoris(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	url, _ := apitest.Conns(t, func(_ int, _ []byte, c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
		for {
			if _, err := c.Write([]byte("x")); err != nil {
				close(gone)
				return
			}
			<-time.After(time.Millisecond) // simulated: a server that trickles
		}
	})
	e := toolbox.NewHTTPExecutor()
	defer e.Close()
	d := httpTool(url, tool.Policy{Timeout: tool.Duration(50 * time.Millisecond)})
	pool := toolbox.NewPool(toolbox.DefaultPool())
	target := &toolbox.Target{Tools: tools{"x": d}, Rules: documents(), Executors: toolbox.Executors{"http": e},
		Pool: pool}
	require.Equal(t, messages.ToolTimeout, faultOf(t, target.Do(t.Context(), call("x", `{}`), noEmit)).Code)
	<-gone
	require.Eventually(t, func() bool { return pool.Running() == 0 }, 30*time.Second, time.Millisecond)
}

// A tool that does not come from the operator's file reaches no address inside, by whatever name; the address is looked
// at when the connection is made, so a name that means another address the second time is no way round.
func TestHTTPGuard(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/inside" {
			http.Redirect(w, r, "http://127.0.0.2:1/", http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	require.NoError(t, err)
	shut, open := toolbox.NewHTTPExecutor(), toolbox.NewHTTPExecutor(netip.MustParsePrefix("127.0.0.1/32"))
	defer shut.Close()
	defer open.Close()
	for _, source := range []tool.Source{tool.API, tool.Discovered, ""} {
		for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254",
			"127.1"} {
			d := httpTool("http://"+host+":"+port, tool.Policy{})
			d.Source = source
			_, err := execute(t, shut, d)
			f := faultOf(t, err)
			require.True(t, f.Unsent, "%s: %s", host, f.Message)
			if host != "127.1" { // not an address for Go: a name that nobody has
				require.Equal(t, messages.Misconfigured, f.Code, "%s: %s", host, f.Message)
			}
		}
		require.Zero(t, asked.Load())
		d := httpTool("http://localhost:"+port, tool.Policy{})
		d.Source = source
		_, err := execute(t, open, d)
		require.NoError(t, err, "a network that the operator opened")
		d.Executor.URL = "http://127.0.0.1:" + port + "/inside"
		_, err = execute(t, open, d)
		require.Contains(t, faultOf(t, err).Message, "redirect")
		asked.Store(0)
	}
}
