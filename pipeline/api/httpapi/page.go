package httpapi

import (
	"bytes"
	"embed"
	"html"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// pageFiles are the page as its browser gets it: plain modules and a style sheet, without a build step.
//
//go:embed web
var pageFiles embed.FS

// pagePolicy lets the page load from its own gateway only, and run nothing that stands in its markup.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// page serves the web page. It shows nothing by itself and therefore needs no key; the control surfaces that it asks
// do.
type page struct{ files map[string][]byte }

// NewPage fills in what the page cannot ask for: the subject root, the version, and where NATS clients connect.
func NewPage(root, version, natsURL string) *page {
	p := &page{files: map[string][]byte{}}
	entries, _ := fs.ReadDir(pageFiles, "web") // it is embedded: no error is possible
	for _, e := range entries {
		p.files[e.Name()], _ = fs.ReadFile(pageFiles, "web/"+e.Name())
	}
	index := strings.NewReplacer("{{root}}", html.EscapeString(root), "{{version}}", html.EscapeString(version),
		"{{nats}}", html.EscapeString(natsURL)).Replace(string(p.files["index.html"]))
	p.files["index.html"] = []byte(index)
	return p
}

// ServeHTTP answers GET /ui/ with the page, GET /ui/{file} with what it is made of, and GET / with a redirect to it.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeFault(w, methodFault(w, r, "GET, HEAD"))
		return
	}
	name, inside := strings.CutPrefix(r.URL.Path, "/ui/")
	if !inside {
		http.Redirect(w, r, "/ui/", http.StatusFound)
		return
	}
	if name == "" {
		name = "index.html"
	}
	body, ok := p.files[name]
	if !ok {
		writeFault(w, noPath(r))
		return
	}
	h := w.Header()
	h.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = bytes.NewReader(body).WriteTo(w) // it fails only if the reader is gone
}

// Surfaces are the places where the page is mounted.
func (p *page) Surfaces() []Surface {
	return []Surface{
		{Pattern: "/ui/", Control: true, Static: true, Handler: p},
		{Pattern: "/{$}", Control: true, Static: true, Handler: p},
	}
}
