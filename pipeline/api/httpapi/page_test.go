package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func withPage(_ *Config, p *Deps) {
	p.Extra = NewPage("root", "1.2.3", "nats://127.0.0.1:4222").Surfaces()
}

func TestPage(t *testing.T) {
	t.Parallel()
	g := controlled(t, "127.0.0.1:8080", withPage)
	got := g.Do(t, "GET", "/ui/", "")
	require.Equal(t, 200, got.StatusCode, got.Body)
	require.Equal(t, "text/html; charset=utf-8", got.Header.Get("Content-Type"))
	require.Contains(t, got.Body, `<meta name="shallot-root" content="root">`)
	require.NotContains(t, got.Body, "{{", "every place is filled in")
	require.Less(t, len(got.Body), 60_000)
	for _, foreign := range []string{"https://", "http://", "<script src", "@import", "url("} {
		require.NotContains(t, strings.ReplaceAll(got.Body, "http://www.w3.org/", ""), foreign,
			"the page is made of one file")
	}

	_, script, _ := strings.Cut(got.Body, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	sum := sha256.Sum256([]byte(script))
	require.Contains(t, got.Header.Get("Content-Security-Policy"),
		"'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	require.NotContains(t, script, "innerHTML", "what comes from calls is shown as text")

	require.Equal(t, 405, g.Do(t, "POST", "/ui/", "").StatusCode)
	require.Equal(t, 404, g.Do(t, "GET", "/ui/nothing", "").StatusCode)
	require.Equal(t, 404, g.Do(t, "GET", "/nothing", "").StatusCode, "only / leads to the page")
}

func TestPageIsForThisMachine(t *testing.T) {
	t.Parallel()
	public := controlled(t, "0.0.0.0:8080", func(c *Config, p *Deps) { c.InsecureOpen = true; withPage(c, p) })
	require.Equal(t, 404, public.Do(t, "GET", "/ui/", "").StatusCode, "contracts 19: never on a port beyond loopback")

	keys, err := ParseKeys([]byte(`{"keys":[{"id":"k","hash":"sha256:`+strings.Repeat("0", 64)+`"}]}`), "")
	require.NoError(t, err)
	keyed := controlled(t, "127.0.0.1:8080", func(c *Config, p *Deps) { p.Keys = keys; withPage(c, p) })
	require.Equal(t, 200, keyed.Do(t, "GET", "/ui/", "").StatusCode, "a browser has no key to send for a page")
	require.Equal(t, 401, keyed.Do(t, "GET", debugAPI+"-stats", "").StatusCode, "what it asks for needs one")
}

func TestPageRedirectAndHost(t *testing.T) {
	t.Parallel()
	p := NewPage("shallot", "1", "")
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, http.StatusFound, w.Code)
	require.Equal(t, "/ui/", w.Header().Get("Location"))

	r := httptest.NewRequest("GET", "/ui/", nil)
	r.Host = "evil.example"
	w = httptest.NewRecorder()
	local("127.0.0.1:8080", p)(w, r)
	require.Equal(t, http.StatusForbidden, w.Code, "DNS rebinding")
}
