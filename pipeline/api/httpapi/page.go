package httpapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html"
	"net/http"
	"strings"
)

//go:embed web/index.html
var pageFile string

// page serves the web page: one file without a build step that loads nothing from elsewhere. It shows nothing by itself
// and therefore needs no key; the control surfaces that it asks do.
type page struct {
	body   []byte
	policy string
}

// NewPage fills in what the page cannot ask for: the subject root, the version, and where NATS clients connect.
func NewPage(root, version, natsURL string) *page {
	text := strings.NewReplacer("{{root}}", html.EscapeString(root), "{{version}}", html.EscapeString(version),
		"{{nats}}", html.EscapeString(natsURL)).Replace(pageFile)
	_, script, _ := strings.Cut(text, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	sum := sha256.Sum256([]byte(script))
	return &page{body: []byte(text), policy: strings.Join([]string{
		"default-src 'none'", "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'",
		"style-src 'unsafe-inline'", "connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'",
		"frame-ancestors 'none'",
	}, "; ")}
}

// ServeHTTP answers GET /ui/ with the page, and GET / with a redirect to it.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		writeFault(w, methodFault(w, r, "GET, HEAD"))
	case r.URL.Path == "/":
		http.Redirect(w, r, "/ui/", http.StatusFound)
	case r.URL.Path != "/ui/":
		writeFault(w, noPath(r))
	default:
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", p.policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		_, _ = bytes.NewReader(p.body).WriteTo(w) // it fails only if the reader is gone
	}
}

// Surfaces are the places where the page is mounted.
func (p *page) Surfaces() []Surface {
	return []Surface{
		{Pattern: "/ui/", Control: true, Static: true, Handler: p},
		{Pattern: "/{$}", Control: true, Static: true, Handler: p},
	}
}
