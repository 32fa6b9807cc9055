package tools_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// What a tool's headers refer to is resolved where the request is sent, and lies nowhere else (SE-5).
func TestSecretsOfToolsStayWithTheWorker(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/leak" {
			http.Error(w, "", http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, strings.Join([]string{r.Header.Get("Authorization"), r.Header.Get("X-File"),
			r.Header.Get("X-Secret"), r.Header.Get("X-Plain")}, "|"))
	}))
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pay"), []byte("from-the-directory\n"), 0o600))
	h := apitest.Host(t, `
tool:
  secrets-dir: `+dir+`
  tools:
    - name: mine
      effect: read
      executor:
        kind: http
        url: `+srv.URL+`
        headers: {Authorization: "Bearer ${TOK}", X-File: "${file:`+dir+
		`/pay}", X-Secret: "${secret:pay}", X-Plain: "a$$b$c"}
    - {name: poor, effect: write, executor: {kind: http, url: "`+srv.URL+`", headers: {X: "${NOWHERE}"}}}
`, func(o *host.Options) {
		o.Getenv = func(name string) string { return map[string]string{"TOK": "from-the-environment"}[name] }
	})
	c := call(t, h, pipeline.Request{Tool: "mine", Body: []byte(`{}`)})
	text, _ := c.ReplyText()
	require.Equal(t, "Bearer from-the-environment|from-the-directory|from-the-directory|a$b$c", text)
	c = call(t, h, pipeline.Request{Tool: "poor", Body: []byte(`{}`)})
	require.Contains(t, string(c.Reply()), "NOWHERE is not set")

	js, err := jetstream.New(h.Conn)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "shallot_tools")
	require.NoError(t, err)
	keys, err := kv.Keys(t.Context())
	require.NoError(t, err)
	all := ""
	for _, k := range keys {
		e, err := kv.Get(t.Context(), k)
		require.NoError(t, err)
		all += string(e.Value())
	}
	require.Contains(t, all, "${TOK}")
	require.NotContains(t, all, "from-the-")

	_, err = h.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"spy","executor":{"kind":"http","url":"https://example.com","headers":{"X":"${TOK}"}}}`), "eve")
	f := messages.AsFault(err, "")
	require.Equal(t, messages.InvalidRequest, f.Code)
	require.Contains(t, f.Message, "/executor/headers/X")
	for _, ref := range []string{"${file:/etc/passwd}", "${secret:../pay}", "${secret:}", "${TOK"} {
		_, err = h.Tools.RegisterTool(t.Context(),
			[]byte(`{"name":"spy","executor":{"kind":"http","url":"https://example.com","headers":{"X":"`+ref+`"}}}`), "eve")
		require.Error(t, err, ref)
	}
}
