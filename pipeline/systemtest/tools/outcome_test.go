package tools_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// A tool that may not run twice and was asked gives outcome_unknown, whatever its answer looked like, unless the answer
// proves that nothing was done (EN-3).
func TestATaskBegunWithoutProofHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	answers := map[string]http.HandlerFunc{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answers[strings.TrimPrefix(r.URL.Path, "/")](w, r)
	}))
	t.Cleanup(srv.Close)
	for _, status := range []int{302, 307, 401, 403, 404, 408, 409, 429, 500, 501, 502, 503, 504, 529} {
		answers[fmt.Sprint(status)] = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/"+fmt.Sprint(status))
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
		}
	}
	answers["large"] = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4096)) }
	answers["latin1"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("caf\xe9"))
	}
	answers["cut"] = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("{"))
		panic(http.ErrAbortHandler)
	}
	answers["text"] = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"error":"already paid"}`))
	}
	answers["busy"] = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"error":"busy"}`))
	}
	yaml := "tool:\n  tools:\n"
	for name := range answers {
		proof := ""
		if name == "429" || name == "busy" {
			proof = ", not-executed: [429, 409]"
		}
		yaml += fmt.Sprintf("    - {name: w_%s, effect: write, executor: {kind: http, url: %q, max-response: 1KiB}%s}\n",
			name, srv.URL+"/"+name, proof)
	}
	yaml += "    - {name: n_fails, effect: external, executor: \"nats:own.fails\"}\n" +
		"    - {name: n_gone, effect: external, executor: \"nats:own.gone\"}\n" +
		"    - {name: r_500, effect: read, executor: \"" + srv.URL + "/500\"}\n"
	dir := t.TempDir()
	h := startRoles(t, "nats: {embedded: {port: 0, sync: 1m, data: "+dir+"}}\n"+
		"agent: {interceptor: {tool-retry: {base-delay: 1ms, max-retries: 1}}}\n"+yaml, host.Everything())
	_, err := h.Conn.Subscribe("own.fails", func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Nats-Service-Error-Code": {"500"}, "Nats-Service-Error": {"no"}}})
	})
	require.NoError(t, err)
	unproven := func(t *testing.T, name string) {
		c := call(t, h, pipeline.Request{Tool: name, Body: []byte(`{}`)})
		require.NotNil(t, c.Fault, string(c.Reply()))
		require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
		require.NotContains(t, c.Notes, messages.NoteDegraded)
	}
	for name := range answers {
		if name != "429" && name != "busy" && name != "text" {
			t.Run(name, func(t *testing.T) { unproven(t, "w_"+name) })
		}
	}
	t.Run("a NATS error", func(t *testing.T) { unproven(t, "n_fails") })
	t.Run("the tool's own words go on", func(t *testing.T) {
		c := call(t, h, pipeline.Request{Tool: "w_text", Body: []byte(`{}`)})
		require.Nil(t, c.Fault)
		require.JSONEq(t, `{"error":"already paid"}`, string(c.Reply()))
		require.True(t, c.Flag(messages.NoteIsError))
	})
	for _, name := range []string{"w_429", "w_busy", "n_gone"} {
		t.Run("proof: "+name, func(t *testing.T) {
			before := asked.Load()
			c := call(t, h, pipeline.Request{Tool: name, Body: []byte(`{}`)})
			require.Nil(t, c.Fault)
			require.Contains(t, string(c.Reply()), "graceful_error")
			if name != "n_gone" {
				require.Equal(t, before+2, asked.Load(), "proof that nothing was done: it is tried again")
			}
		})
	}
	t.Run("a tool that may run twice fails as it always did", func(t *testing.T) {
		c := call(t, h, pipeline.Request{Tool: "r_500", Body: []byte(`{}`), Deadline: time.Now().Add(20 * time.Second)})
		require.Nil(t, c.Fault)
		require.Contains(t, string(c.Reply()), "graceful_error")
	})
}
