package toolbox_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// A kept connection that closes just as a request leaves is not a failure of the tool: who may be asked twice is asked
// once more, who may not is never asked on a kept connection. Go's transport, which would send again whatever carries
// an idempotency key, decides nothing (FO-5).
func TestAKeptConnectionThatClosesUnderATool(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		second   string
		once     bool
		requests int64
		fails    bool
	}{
		"may be asked twice, not a word came":      {"", false, 3, false},
		"may be asked twice, half a status came":   {"HTTP/1.1 2", false, 2, true},
		"may be asked twice, only headers came":    {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", false, 2, true},
		"may be asked twice, no HTTP came":         {"hello\r\n\r\n", false, 2, true},
		"may not be asked twice, not a word came":  {"", true, 2, false},
		"may not be asked twice, a status came":    {"HTTP/1.1 2", true, 2, false},
		"may be asked twice, says that it is busy": {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", false, 2, true},
	} {
		for _, own := range []string{"", "Idempotency-Key", "x-idempotency-key"} {
			t.Run(strings.TrimSpace(name+" "+own), func(t *testing.T) {
				t.Parallel()
				url, requests := apitest.Conns(t, apitest.KeptOpen(func(b []byte) []byte { return b }, tt.second))
				e := toolbox.NewHTTPExecutor()
				t.Cleanup(e.Close)
				d := httpTool(url, tool.Policy{})
				if own != "" {
					d.Executor.Headers = map[string]string{own: "mine"}
				}
				inv := toolbox.Invocation{Tool: d, Arguments: []byte(`{"a":1}`), IdempotencyKey: "k1", Once: tt.once}
				_, err := e.Execute(t.Context(), inv)
				require.NoError(t, err)
				r, err := e.Execute(t.Context(), inv)
				require.EqualValues(t, tt.requests, requests.Load())
				if tt.fails {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				require.JSONEq(t, `{"a":1}`, string(r.Content), "the body went along")
			})
		}
	}
}

// What breaks on a new connection is told: an endpoint that took the request and died with it may have done the work.
func TestARequestOnANewConnectionIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{true, false} {
		url, requests := apitest.Conns(t, func(_ int, _ []byte, c net.Conn) { _ = c.Close() })
		e := toolbox.NewHTTPExecutor()
		defer e.Close()
		_, err := e.Execute(t.Context(),
			toolbox.Invocation{Tool: httpTool(url, tool.Policy{}), Arguments: []byte(`{}`), IdempotencyKey: "k1", Once: once})
		f := faultOf(t, err)
		require.Equal(t, messages.ToolNetwork, f.Code)
		require.False(t, f.Unsent, "it may have run")
		require.EqualValues(t, 1, requests.Load())
	}
}
