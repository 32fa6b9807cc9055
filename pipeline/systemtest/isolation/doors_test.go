package isolation

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// object is a JSON object with n keys.
func object(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%s":1`, strconv.FormatInt(int64(i), 36))
	}
	return "{" + b.String()[1:] + "}"
}

// hostile are values that no door takes anywhere in a body.
var hostile = map[string]string{
	"deep arrays":           strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
	"deep objects":          strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
	"deep and open":         strings.Repeat(`{"a":[`, 5_000),
	"many keys":             object(100_000),
	"many values":           "[" + strings.Repeat("1,", 500_000) + "1]",
	"a text without UTF-8":  "\"a\xffb\"",
	"half a surrogate pair": "\"\xed\xa0\x80\"",
	"an overlong slash":     "\"\xc0\xaf\"",
	"a control character":   "\"a\x01b\"",
	"a bad escape":          `"\x41"`,
	"not a number":          "NaN",
	"a comma too many":      `[1,]`,
	"an open text":          `"abc`,
}

// twice are values that tools may get, and nobody else: of their arguments the last of two counts, for every reader.
var twice = map[string]string{
	"a key twice":          `{"a":1,"a":2}`,
	"an escaped key twice": `{"a":1,"\u0061":2}`,
	"a deep key twice":     `[{"x":{"y":1,"z":2,"y":3}}]`,
}

// door is where bodies come in. in puts a hostile value where the door reads one.
type door struct {
	name string
	in   string // %s is the value
	http string // method and path; empty: NATS
	key  string
	nats string
	tool bool // arguments of a tool: what is no JSON ends as a fault of the call
}

func doors() []door {
	const chat = `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}],"x":%s}`
	messages := strings.Replace(chat, "{", `{"max_tokens":9,`, 1)
	answer := `{"model":"demo/echo","input":[{"role":"user","content":"hi"}],"x":%s}`
	edit := `{"items":[{"title":"a"}],"replace":%s}`
	return []door{
		{name: "chat", http: "POST /v1/chat/completions", key: acme, in: chat},
		{name: "messages", http: "POST /v1/messages", key: acme, in: messages},
		{name: "count tokens", http: "POST /v1/messages/count_tokens", key: acme, in: messages},
		{name: "responses", http: "POST /v1/responses", key: acme, in: answer},
		{name: "count input tokens", http: "POST /v1/responses/input_tokens", key: acme, in: answer},
		{name: "compact", http: "POST /v1/responses/compact", key: acme, in: answer},
		{name: "conversation", http: "POST /v1/conversations", key: acme, in: `{"items":[{"role":"user","content":%s}]}`},
		{name: "embeddings", http: "POST /v1/embeddings", key: acme, in: `{"model":"demo/embed","input":"hi","x":%s}`},
		{name: "agent", http: "POST /v1/agents/a/chat/completions", key: acme, in: chat},
		{name: "tool", http: "POST /v1/tools/echo/call", key: acme, in: `{"message":%s}`, tool: true},
		{name: "todo", http: "PUT /v1/todo/s", key: acme, in: edit},
		{
			name: "mcp",
			http: "POST /mcp",
			key:  acme,
			in:   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":%s}}}`,
		},
		{name: "definition", http: "POST /v1/tools", key: "op", in: `{"name":"t","executor":"go:echo","input-schema":%s}`},
		{name: "approval of a tool", http: "POST /v1/tools/echo/approve", key: "op", in: `{"hash":"x","y":%s}`},
		{
			name: "decision",
			http: "POST /v1/approvals/0199aaaa-0000-7000-8000-000000000000",
			key:  "op",
			in:   `{"decision":"edit","arguments":%s}`,
		},
		{name: "switch", http: "POST /api/debug/interceptor/logging/disable", key: "op", in: `{"confirm":%s}`},
		{name: "nats model", nats: "shallot.v1.tenant.acme.model.request", in: chat},
		{name: "nats model submit", nats: "shallot.v1.tenant.acme.model.submit", in: chat},
		{name: "nats agent", nats: "shallot.v1.tenant.acme.agent.request", in: chat},
		{name: "nats agent submit", nats: "shallot.v1.tenant.acme.agent.submit", in: chat},
		{name: "nats agent by name", nats: "shallot.v1.tenant.acme.agent.request.a", in: chat},
		{name: "nats tool", nats: "shallot.v1.tenant.acme.tool.request.echo", in: `{"message":%s}`, tool: true},
		{
			name: "nats todo",
			nats: "shallot.v1.tenant.acme.todo.put",
			in:   `{"session":"s","items":[{"title":"a"}],"replace":%s}`,
		},
		{name: "nats todo get", nats: "shallot.v1.tenant.acme.todo.get", in: `{"session":%s}`},
		{name: "nats decision", nats: "shallot.v1.approval.answer", key: "op", in: `{"call":"x","answer":%s}`},
		{name: "nats switch", nats: "shallot.v1.control.disable", key: "op", in: `{"name":%s}`},
	}
}

// Whatever is put into a body, each door answers soon, with an error that says what is wrong with it, and never with
// one that says that we failed.
func TestEachDoorRefusesHostileBodies(t *testing.T) {
	t.Parallel()
	i := start(t, "agent: {interceptor: {tool-fallback: {enabled: false}}}\n")
	caller, operator := i.dial(acme), i.dial("operator")
	for _, d := range doors() {
		t.Run(d.name, func(t *testing.T) {
			send := func(t *testing.T, body string) reply {
				t.Helper()
				begin := time.Now()
				defer func() { require.Less(t, time.Since(begin), 30*time.Second) }()
				if d.http != "" {
					method, path, _ := strings.Cut(d.http, " ")
					return ask(t, i.base, d.key, method, path, body, "Accept: application/json, text/event-stream")
				}
				if d.key == "op" {
					return operator.ask(t, d.nats, body)
				}
				return caller.ask(t, d.nats, body)
			}
			refused := func(t *testing.T, r reply) {
				t.Helper()
				require.GreaterOrEqual(t, r.status, 400, r)
				require.Less(t, r.status, 500, r)
				text := gjson.Get(r.body, "error.message").Str
				require.NotEmpty(t, text, r)
				require.Less(t, len(r.body), 2000, "what was sent is not sent back")
				require.True(t, gjson.Valid(r.body))
				if d.name != "mcp" {
					require.NotEmpty(t, r.fault, r)
					require.Contains(t, []string{"invalid_request", "too_large", "invalid_arguments"}, r.fault)
				}
			}
			for name, value := range hostile {
				t.Run(name, func(t *testing.T) { refused(t, send(t, fmt.Sprintf(d.in, value))) })
			}
			for name, value := range twice {
				if !d.tool {
					t.Run(name, func(t *testing.T) { refused(t, send(t, fmt.Sprintf(d.in, value))) })
				}
			}
			if d.http == "" {
				return
			}
			t.Run("too long", func(t *testing.T) {
				r := send(t, fmt.Sprintf(d.in, `"`+strings.Repeat("x", bodyLimit)+`"`))
				refused(t, r)
				require.Equal(t, 413, r.status, r)
			})
		})
	}
	r := ask(t, i.base, acme, "POST", "/v1/chat/completions",
		`{"model":"demo/echo","messages":[{"role":"user","content":"well"}]}`)
	require.Equal(t, 200, r.status, r)
}

// raw sends bytes and returns the answer, or nothing where the connection was closed without one.
func raw(t *testing.T, base, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = io.WriteString(c, request) // the server may hang up within it
	out, _ := io.ReadAll(c)
	return string(out)
}

// Headers are bounded in number and size, slow ones in time, and so are bodies; others are served meanwhile.
func TestTheHTTPDoorBoundsWhatItReads(t *testing.T) {
	t.Parallel()
	i := start(t, "")
	impatient := i.face(slog.New(slog.DiscardHandler), 2*time.Second)
	hasty := i.listen(impatient, impatient.Handler())
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" +
		"Authorization: Bearer key-acme\r\nContent-Type: application/json\r\n"
	for name, tt := range map[string]struct {
		request string
		status  string
	}{
		"one long header":      {head + "X-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", "431"},
		"many headers":         {head + strings.Repeat("X-A: a\r\n", 50_000) + "\r\n", "431"},
		"a long path":          {"GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "431"},
		"a head that hangs":    {head, ""},
		"a body that hangs":    {head + "Content-Length: 100\r\n\r\n{", "408"},
		"a chunk that hangs":   {head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "408"},
		"a body that is short": {head + "Content-Length: 4\r\nConnection: close\r\n\r\n{}{}", "400"},
		"a length too far":     {head + "Content-Length: 99999999999\r\n\r\n{}", "413"},
		"a chunk too far": {head + "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat(" ", 2<<20) +
			"\r\n0\r\n\r\n", "413"},
		"a wrong coding":   {head + "Content-Encoding: br\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", "415"},
		"no HTTP":          {"hello\r\n\r\n", "400"},
		"a coding unknown": {head + "Transfer-Encoding: br\r\n\r\n", "501"},
		"two hosts":        {"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
		"no host":          {"GET /livez HTTP/1.1\r\n\r\n", "400"},
		"HTTP/9":           {"GET / HTTP/9.9\r\n\r\n", "505"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			base := i.base
			if strings.HasSuffix(name, "that hangs") {
				base = hasty
			}
			out := raw(t, base, tt.request)
			require.Less(t, time.Since(begin), 30*time.Second)
			if tt.status == "" {
				require.True(t, out == "" || strings.HasPrefix(out, "HTTP/1.1 4"), "%.200s", out)
				return
			}
			require.True(t, strings.HasPrefix(out, "HTTP/1.1 "+tt.status), "%.300s", out)
			_, body, _ := strings.Cut(out, "\r\n\r\n")
			require.NotEmpty(t, gjson.Get(body, "error.message").Str, "%.600s", out)
			require.Contains(t, out, "\r\nShallot-Fault: ")
			require.Contains(t, out, "\r\nX-Request-Id: ")
		})
	}
	t.Run("a bomb", func(t *testing.T) {
		t.Parallel()
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		for range 100 {
			_, _ = z.Write(make([]byte, 1<<20))
		}
		require.NoError(t, z.Close())
		r := ask(t, i.base, acme, "POST", "/v1/chat/completions", packed.String(), "Content-Encoding: gzip")
		require.Equal(t, 413, r.status, r)
	})
	t.Run("slow ones do not stop others", func(t *testing.T) {
		t.Parallel()
		slow := make([]net.Conn, 300)
		for n := range slow {
			c, err := net.Dial("tcp", strings.TrimPrefix(hasty, "http://"))
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			_, err = io.WriteString(c, []string{"GET / HT", head[:len(head)-2], head + "Content-Length: 9\r\n\r\n{"}[n%3])
			require.NoError(t, err)
			slow[n] = c
		}
		r := ask(t, hasty, acme, "POST", "/v1/chat/completions",
			`{"model":"demo/echo","messages":[{"role":"user","content":"well"}]}`)
		require.Equal(t, http.StatusOK, r.status, r)
		for _, c := range slow { // each is ended by the server
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			_, err := io.Copy(io.Discard, c)
			require.NoError(t, err)
		}
	})
}
