package mcp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
)

// A server that closes a kept connection under a call is asked once more if the tool may run twice; a tool that may not
// is asked on a connection of its own (FO-5).
func TestAKeptConnectionThatClosesUnderAnMCPTool(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	used, calls := map[string]int{}, 0 // requests by connection
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		isCall := gjson.GetBytes(body, "method").Str == "tools/call"
		mu.Lock()
		used[r.RemoteAddr]++
		stale := isCall && used[r.RemoteAddr] > 1
		if isCall {
			calls++
		}
		mu.Unlock()
		if stale {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		out := reply(body)
		if out == "" {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = io.WriteString(w, out)
	}))
	t.Cleanup(srv.Close)
	m, reg := connected(t, mcp.Server{Name: "up", URL: srv.URL})
	d, err := reg.Get(t.Context(), "good")
	require.NoError(t, err)
	for _, once := range []bool{true, false, true} {
		mu.Lock()
		calls = 0
		mu.Unlock()
		r, err := m.Execute(t.Context(), toolbox.Invocation{Tool: d, Arguments: []byte(`{}`), Once: once})
		require.NoError(t, err, "once: %t", once)
		require.Equal(t, "good", string(r.Content))
		mu.Lock()
		if once {
			require.Equal(t, 1, calls)
		} else {
			require.Equal(t, 2, calls)
		}
		mu.Unlock()
	}
}
