package tools_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
)

// An endpoint that closes its idle connections fails no tool, and runs none twice that may not run twice (FO-5).
func TestAnEndpointThatClosesIdleConnectionsFailsNoTool(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	used, ran := map[string]bool{}, map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		kept := used[r.RemoteAddr]
		used[r.RemoteAddr] = true
		ran[r.URL.Path]++
		if kept { // it has the request, and nobody can tell
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"ok":true}`))
	}))
	t.Cleanup(srv.Close)
	h := toolHost(t, fmt.Sprintf("tool:\n  tools:\n"+
		"    - {name: read, effect: read, cache: off, executor: %q}\n"+
		"    - {name: charge, effect: write, executor: %q}\n", srv.URL+"/read", srv.URL+"/charge"))
	for range 5 {
		for _, name := range []string{"read", "charge"} {
			c := call(t, h, pipeline.Request{Tool: name, Body: []byte(`{}`)})
			require.Nil(t, c.Fault, "%s: %v", name, c.Fault)
			require.JSONEq(t, `{"ok":true}`, string(c.Reply()))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 5, ran["/charge"])
	require.Greater(t, ran["/read"], 5)
}
