package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
)

// upstream is a provider that notes which models it was asked for. "bad" fails, "empty" says nothing.
func upstream(t *testing.T) (url string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		name := gjson.GetBytes(body, "model").Str
		mu.Lock()
		seen = append(seen, name)
		mu.Unlock()
		text := "from " + name
		switch name {
		case "bad":
			w.WriteHeader(http.StatusInternalServerError)
			return
		case "empty":
			text = ""
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "1", "object": "chat.completion", "model": name,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop",
				"message": map[string]string{"role": "assistant", "content": text}}}})
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1", func() []string {
		mu.Lock()
		defer mu.Unlock()
		out := seen
		seen = nil
		return out
	}
}

// keysFile writes records whose key is key-<id>; more is JSON that goes into the record.
func keysFile(t *testing.T, records map[string]string) string {
	t.Helper()
	var out []string
	for id, more := range records {
		out = append(out, fmt.Sprintf(`{"id":%q,"hash":%q%s}`, id, httpapi.HashKey("key-"+id, nil), more))
	}
	file := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"keys":[`+strings.Join(out, ",")+`]}`), 0o600))
	return file
}

func post(t *testing.T, url, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	r, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	raw, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return r.StatusCode, string(raw), r.Header
}

// What a key may not use is not reached by any way of a call of this key: not as a standby, not for a summary, not by a
// name that means the same model. What the call was is read only by keys that may use its model (SE-3).
func TestAKeysModelsBindEveryModelOfItsCalls(t *testing.T) {
	t.Parallel()
	url, asked := upstream(t)
	keys := keysFile(t, map[string]string{
		"few": `,"models":["bad","empty","good*"]`, "one": `,"models":["bad"]`, "all": ``,
		"half": `,"models":["bad","standby*"]`, "operator": `,"role":"operator","models":["bad"]`,
		"other": `,"models":["good"]`,
	})
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
version: 1
http: {keys-file: "`+keys+`"}
models: {providers: [{name: up, base-url: "`+url+`", models: ["bad", "empty", "good*", "standby*", "secret*"]}]}
agent:
  interceptor:
    model-fallback: {fallback-models: [secret-1, standby-2], max-retries: 1}
    context-editing: {strategy: SUMMARIZE, max-tokens: 60, summarize-threshold: 60, summary-model: secret-sum,
        apply-to: [bare, session]}
`), 0o600))
	base, _ := command(t, "--config", file)
	long := func(model string) string {
		var b strings.Builder
		for i := range 30 {
			role := []string{"user", "assistant"}[i%2]
			fmt.Fprintf(&b, `{"role":%q,"content":"%s"},`, role, strings.Repeat("words and words ", 20))
		}
		return `{"model":"` + model + `","messages":[` + b.String() + `{"role":"user","content":"so?"}]}`
	}
	short := func(model string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":"so?"}]}`
	}
	for _, tt := range []struct {
		name, key, body string
		status          int
		asked           []string
	}{
		{"any key", "all", short("bad"), 200, []string{"bad", "secret-1"}},
		{"any key, summary", "all", long("good"), 200, []string{"secret-sum", "good"}},
		{"no standby is allowed", "one", short("bad"), 502, []string{"bad"}},
		{"the second standby is allowed", "half", short("bad"), 200, []string{"bad", "standby-2"}},
		{"an empty reply", "few", short("empty"), 200, []string{"empty"}},
		{"no summary", "few", long("good"), 200, []string{"good"}},
		{"summary and standby", "few", long("bad"), 502, []string{"bad"}},
		{"an operator's list binds too", "operator", short("bad"), 502, []string{"bad"}},
		{"the model itself", "one", short("secret-1"), 403, nil},
		{"with its provider", "one", short("up/bad"), 403, nil},
	} {
		for _, session := range []string{"", "s-1"} {
			headers := []string{"Authorization", "Bearer key-" + tt.key}
			if session != "" {
				headers = append(headers, "Shallot-Session", session+tt.name[:3])
			}
			status, text, _ := post(t, base+"/v1/chat/completions", tt.body, headers...)
			require.Equal(t, tt.status, status, "%s: %s", tt.name, text)
			got := asked()
			if session != "" && tt.name == "any key, summary" {
				got, tt.asked = got[len(got)-1:], tt.asked[1:] // the summary is kept
			}
			require.Equal(t, tt.asked, got, tt.name)
		}
	}
	_, _, h := post(t, base+"/v1/chat/completions", short("bad"), "Authorization", "Bearer key-half", "Prefer",
		"respond-async")
	read := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+h.Get("Location"), http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer key-"+key)
		req.Header.Set("Prefer", "wait=20")
		r, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		return r.StatusCode
	}
	require.Equal(t, 200, read("half"))
	require.Equal(t, 200, read("all"))
	require.Equal(t, 404, read("other"))
}
