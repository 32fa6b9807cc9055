package tools_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// Bytes that are no text arrive as they were sent, with their type; a text that is not UTF-8 is refused (TL-3).
func TestBinaryResultsArriveUndamaged(t *testing.T) {
	t.Parallel()
	bytes := "\x89PNG\r\n\x1a\n\x00\xff\xfe"
	types := map[string]string{"png": "image/png", "wav": "audio/wav", "pdf": "application/pdf",
		"any": "application/octet-stream",
		"svg": "image/svg+xml; charset=utf-8", "latin1": "text/plain; charset=iso-8859-1", "json": "application/problem+json",
		"none": ""}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		w.Header()["Content-Type"] = []string{types[name]}
		out := bytes
		if name == "json" {
			out = `{"a":"é"}`
		}
		_, _ = io.WriteString(w, out)
	}))
	t.Cleanup(srv.Close)
	yaml := "tool:\n  tools:\n    - {name: onbus, effect: read, executor: \"nats:own.bytes\"}\n"
	for name := range types {
		yaml += "    - {name: " + name + ", effect: read, cache: \"off\", executor: \"" + srv.URL + "/" + name + "\"}\n"
	}
	h := toolHost(t, yaml)
	_, err := h.Conn.Subscribe("own.bytes", func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Content-Type": {"image/png"}}, Data: []byte(bytes)})
	})
	require.NoError(t, err)
	url := faces(t, h, api.RoleCaller)
	b64 := base64.StdEncoding.EncodeToString([]byte(bytes))
	for name, at := range map[string]string{"png": "data", "wav": "data", "svg": "data", "onbus": "data",
		"pdf": "resource.blob", "any": "resource.blob"} {
		resp, body := post(t, url+"/v1/tools/"+name+"/call", `{}`)
		require.Equal(t, 200, resp.StatusCode, body)
		require.Equal(t, b64, gjson.Get(body, "content.0."+at).String(), body)
		require.Equal(t, b64, gjson.GetBytes(ask(t, h.Conn, "shallot.v1.tool.request."+name, `{}`).Data,
			"content.0."+at).String())
		r := callMCP(t, url, name, `{}`).Get("result")
		require.Equal(t, b64, r.Get("content.0."+at).String(), r.Raw)
		require.Len(t, r.Get("content").Array(), 1)
		want, _, _ := strings.Cut(types[name], ";")
		if name == "onbus" {
			want = "image/png"
		}
		require.Equal(t, want, r.Get("content.0."+strings.Replace(strings.Replace(at, "data", "mimeType", 1), "blob",
			"mimeType", 1)).String())
	}
	for _, name := range []string{"latin1", "none"} {
		resp, body := post(t, url+"/v1/tools/"+name+"/call", `{}`)
		require.Equal(t, 502, resp.StatusCode, body)
		require.Contains(t, body, "not valid UTF-8 at byte 0")
	}
	_, body := post(t, url+"/v1/tools/json/call", `{}`)
	require.Equal(t, `{"a":"é"}`, body)
}
