package httpapi

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
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
	policy := got.Header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; script-src 'self'")
	require.NotContains(t, policy, "unsafe", "nothing in the markup runs or styles")
	require.NotContains(t, got.Body, " style=")
	require.NotContains(t, got.Body, " onclick=")

	require.Equal(t, 405, g.Do(t, "POST", "/ui/", "").StatusCode)
	require.Equal(t, 404, g.Do(t, "GET", "/ui/nothing", "").StatusCode)
	require.Equal(t, 404, g.Do(t, "GET", "/nothing", "").StatusCode, "only / leads to the page")
}

// The page is made of plain files that name only each other.
func TestPageFiles(t *testing.T) {
	t.Parallel()
	g := controlled(t, "127.0.0.1:8080", withPage)
	files, err := pageFiles.ReadDir("web")
	require.NoError(t, err)
	imported := regexp.MustCompile(`(?m)(?:from "\./|href="|src=")([\w.]+)"`)
	types := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
	total := 0
	for _, f := range files {
		got := g.Do(t, "GET", "/ui/"+f.Name(), "")
		require.Equal(t, 200, got.StatusCode, f.Name())
		require.Contains(t, got.Header.Get("Content-Type"), types[path.Ext(f.Name())], f.Name())
		require.Equal(t, "nosniff", got.Header.Get("X-Content-Type-Options"))
		for _, foreign := range []string{"https://", "http://", "@import", " url(", ":url(",
			"innerHTML", "outerHTML", "eval("} {
			require.NotContains(t, strings.ReplaceAll(got.Body, "http://www.w3.org/", ""), foreign, f.Name())
		}
		for _, m := range imported.FindAllStringSubmatch(got.Body, -1) {
			require.Contains(t, fileNames(files), m[1], "%s names it", f.Name())
		}
		total += len(got.Body)
	}
	require.Less(t, total, 150_000, "it is loaded over slow lines too")
}

func fileNames(files []fs.DirEntry) (names []string) {
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func TestPageIsForThisMachine(t *testing.T) {
	t.Parallel()
	public := controlled(t, "0.0.0.0:8080", func(c *Config, p *Deps) { c.InsecureOpen = true; withPage(c, p) })
	require.Equal(t, 404, public.Do(t, "GET", "/ui/", "").StatusCode, "never on a port beyond loopback")

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
