package tools_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// What tool workers do wrong, and what callers send.
func TestHostileTools(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/empty":
		case "/html":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>no JSON</html>"))
		case "/cut":
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("{"))
		case "/big":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 3<<20))
		}
	}))
	t.Cleanup(srv.Close)
	var yaml strings.Builder
	yaml.WriteString("tool:\n  tools:\n")
	for _, n := range []string{"never", "twice", "late", "garbage", "empty", "utf8", "code", "huge"} {
		limit := "30s"
		if n == "never" || n == "late" {
			limit = "300ms"
		}
		yaml.WriteString("    - {name: n_" + n + ", executor: \"nats:h." + n +
			"\", effect: read, timeout: " + limit + ", cache: \"off\"}\n")
	}
	for _, n := range []string{"empty", "html", "cut", "big"} {
		yaml.WriteString("    - {name: h_" + n + ", executor: \"" + srv.URL + "/" + n + "\", effect: read, cache: \"off\"}\n")
	}
	yaml.WriteString("    - {name: a.b, executor: \"go:echo\", effect: read}\n    - {name: " + strings.Repeat("n",
		100) + ", executor: \"go:echo\", effect: read}\n")
	h := toolHost(t, yaml.String())
	serve := func(name string, f func(m *nats.Msg)) {
		_, err := h.Conn.Subscribe("h."+name, f)
		require.NoError(t, err)
	}
	serve("never", func(*nats.Msg) {})
	serve("twice", func(m *nats.Msg) { _ = m.Respond([]byte(`1`)); _ = m.Respond([]byte(`2`)) })
	late := make(chan *nats.Msg, 1)
	serve("late", func(m *nats.Msg) { late <- m })
	serve("garbage", func(m *nats.Msg) { _ = m.Respond([]byte(`{"a":`)) })
	serve("empty", func(m *nats.Msg) { _ = m.Respond(nil) })
	serve("utf8", func(m *nats.Msg) { _ = m.Respond([]byte("\xff\xfe\x00")) })
	serve("code", func(m *nats.Msg) {
		out := nats.NewMsg(m.Reply)
		out.Header.Set("Nats-Service-Error-Code", "not a number")
		_ = m.RespondMsg(out)
	})
	serve("huge", func(m *nats.Msg) { _ = m.Respond(bytes.Repeat([]byte("y"), 900<<10)) })

	for name, want := range map[string]struct {
		reply string
		code  messages.Code
	}{
		"n_never": {code: messages.ToolTimeout}, "n_twice": {reply: "1"}, "n_garbage": {reply: `{"a":`},
		"n_empty": {reply: `""`},
		"n_utf8":  {code: messages.ToolError}, "n_code": {code: messages.ToolError}, "h_empty": {reply: `""`},
		"h_html": {reply: "<html>no JSON</html>"},
		"h_cut":  {code: messages.ToolNetwork}, "n_huge": {}, "h_big": {},
		"a=2Eb": {reply: `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := ask(t, h.Conn, "shallot.v1.tool.request."+name, `{}`)
			require.Equal(t, string(want.code), m.Header.Get("Shallot-Fault"), "%.300s", m.Data)
			switch {
			case strings.HasSuffix(name, "huge") || strings.HasSuffix(name, "big"):
				require.Contains(t, string(m.Data), "[完整结果已保存至: ")
				require.Less(t, len(m.Data), 4000)
			case want.code == "":
				require.Equal(t, want.reply, string(m.Data))
			default:
				require.NotEmpty(t, gjson.GetBytes(m.Data, "error.message").String())
			}
		})
	}
	t.Run("a late answer is dropped", func(t *testing.T) {
		t.Parallel()
		m := ask(t, h.Conn, "shallot.v1.tool.request.n_late", `{}`)
		require.Equal(t, string(messages.ToolTimeout), m.Header.Get("Shallot-Fault"))
		require.NoError(t, receive(t, late).Respond([]byte(`"late"`)))
		require.Equal(t, `{"sum":3}`, string(ask(t, h.Conn, "shallot.v1.tool.request.add", `{"a":1,"b":2}`).Data))
	})
	for name, tool := range map[string]string{"blank": "a b", "1500 bytes": strings.Repeat("x", 1500), "wildcard": "*",
		"slash": "a/b", "control": "a\x00b", "at": "@", "empty version": "add@", "no version": "add@9",
		"name": strings.Repeat("n", 129)} {
		t.Run("no tool: "+name, func(t *testing.T) {
			t.Parallel()
			m := ask(t, h.Conn, "shallot.v1.tool.request."+messages.Token(tool), `{}`)
			require.Contains(t, []string{"tool_not_found", "invalid_request"}, m.Header.Get("Shallot-Fault"), "%s", m.Data)
		})
	}
	for _, args := range []string{"{}", `{"message":"` + strings.Repeat("x", 500<<10) + `"}`, `"{}"`, `""`,
		"{\"a\":1}\n"} {
		begin := time.Now()
		m := ask(t, h.Conn, "shallot.v1.tool.request.echo", args)
		require.Empty(t, m.Header.Get("Shallot-Fault"), "%.100s: %.300s", args, m.Data)
		require.Less(t, time.Since(begin), 30*time.Second)
	}
}
