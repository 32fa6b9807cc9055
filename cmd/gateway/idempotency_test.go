package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What stands in for a tool's result is not given again under the same idempotency key once the tool works; a result is
// (EN-10).
func TestADegradedResultFreesItsKey(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	var ran atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran.Add(1)
		if !works.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"real":true}`))
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
version: 1
tool:
  tools:
    - {name: graceful, description: d, executor: "`+s.URL+
		`", effect: read, idempotent: true, cache: "off", retry: noRetry}
    - {name: stub, description: d, executor: "`+s.URL+
		`", effect: read, idempotent: true, cache: "off", retry: noRetry, stub-data: {fake: 1}}
`), 0o600))
	base, _ := command(t, "--config", file)
	for _, tool := range []string{"graceful", "stub"} {
		works.Store(false)
		call := func() (int, string, string) {
			status, text, h := post(t, base+"/v1/tools/"+tool+"/call", `{}`, "Idempotency-Key", "k-"+tool)
			return status, text, h.Get("Shallot-Degraded")
		}
		status, text, mark := call()
		require.Equal(t, 200, status, text)
		require.NotEmpty(t, mark, text)
		works.Store(true)
		require.Eventually(t, func() bool {
			status, text, mark = call()
			return status == 200 && mark == ""
		}, 30*time.Second, 10*time.Millisecond, "the key is free as soon as the end is stored")
		require.JSONEq(t, `{"real":true}`, text)
		before := ran.Load()
		_, text, _ = call()
		require.JSONEq(t, `{"real":true}`, text)
		require.Equal(t, before, ran.Load(), "a result is kept")
	}
}
