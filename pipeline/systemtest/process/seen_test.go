//go:build unix

package process

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// span is one that arrived at the collector, with the process that made it.
type span struct {
	*trace.Span
	process string
}

// receiver is a collector that keeps what arrives.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []span
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var in collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path == "/v1/traces" && proto.Unmarshal(body, &in) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, res := range in.ResourceSpans {
			process := ""
			for _, a := range res.Resource.Attributes {
				if a.Key == "service.instance.id" {
					process = a.Value.GetStringValue()
				}
			}
			for _, s := range res.ScopeSpans {
				for _, one := range s.Spans {
					r.spans = append(r.spans, span{one, process})
				}
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// of are the spans of a trace that have arrived.
func (r *receiver) of(trace string) (out []span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if hex(s.TraceId) == trace {
			out = append(out, s)
		}
	}
	return out
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	var out strings.Builder
	for _, c := range b {
		out.WriteByte(digits[c>>4])
		out.WriteByte(digits[c&15])
	}
	return out.String()
}

// A trace of one call over four processes arrives at a collector as one tree, and its id stands in the call's story.
func TestATraceOverFourProcessesIsOneTree(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	c := newCluster(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+r.URL, "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRICS_EXPORTER=none")
	_, base := c.gateway()
	c.worker("--stages", "audit,model-fallback").ready(t)
	c.worker("--stages", "logging").ready(t)
	c.worker("--serve", "model").ready(t)
	a := c.http("POST", base+"/v1/chat/completions", echo)
	require.Equal(t, 200, a.status, string(a.body))
	id := a.header("Shallot-Call")
	var story answer
	require.Eventually(t, func() bool {
		story = c.http("GET", base+"/api/calls/"+id, "")
		return story.status == 200 && gjson.GetBytes(story.body, "state").Str == "ended"
	}, 30*time.Second, 10*time.Millisecond)
	trace := gjson.GetBytes(story.body, "trace").Str
	require.Len(t, trace, 32)

	const phases = 5 // audit twice, logging twice, model-fallback after
	want := 2 + phases + 1
	require.Eventually(t, func() bool { return len(r.of(trace)) == want }, 30*time.Second, 10*time.Millisecond)
	spans := r.of(trace)
	var lines []string
	processes := map[string]bool{}
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		for _, s := range spans {
			if hex(s.ParentSpanId) == parent {
				processes[s.process] = true
				lines = append(lines, strings.Repeat("  ", depth)+s.Name)
				walk(hex(s.SpanId), depth+1)
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	walk("", 0)
	require.Equal(t, []string{
		"POST /v1/chat/completions",
		"  call model",
		"    process shallot.v1.hop.model.before.audit",
		"    process shallot.v1.hop.model.before.logging",
		"    chat demo/echo",
		"    process shallot.v1.hop.model.after.logging",
		"    process shallot.v1.hop.model.after.model-fallback",
		"    process shallot.v1.hop.model.after.audit",
	}, lines)
	require.Len(t, processes, 4)
}

// A call is found by any of its ids at any gateway, over HTTP and over NATS; it has one event, and no word of its text
// is in it; the feed shows it as it comes; and the metrics count it.
func TestACallIsFoundAtAnyGateway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "SHALLOT_EXPLAIN__MAX_BYTES=8MiB")
	first, one := c.gateway()
	_, two := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	require.Contains(t, first.String(), `"stream":"SHALLOT_EVENTS","for":"1h0m0s","max_bytes":8388608`,
		"the start says what holds")

	sub, err := c.nc.SubscribeSync("shallot.v1.event.>")
	require.NoError(t, err)
	require.NoError(t, c.nc.Flush())
	const word = "xylophone"
	a := c.http("POST", one+"/v1/chat/completions", strings.ReplaceAll(echo, "hello", word), "Shallot-Session", "s-7",
		"X-Request-Id", "r-7")
	require.Equal(t, 200, a.status, string(a.body))
	id := a.header("Shallot-Call")
	m, err := sub.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "shallot.v1.event.end.model.default.ok."+id, m.Subject)
	require.NotContains(t, string(m.Data), word)
	require.NotEmpty(t, gjson.GetBytes(m.Data, "steps.#").Int())

	for _, query := range []string{"id=" + id, "id=r-7", "id=s-7", "session=s-7&since=1h",
		"request=r-7&outcome=ok", "model=demo/echo"} {
		require.Eventually(t, func() bool {
			list := c.http("GET", two+"/api/calls?"+query, "")
			return list.status == 200 && gjson.GetBytes(list.body, "data.0.call").Str == id
		}, 30*time.Second, 10*time.Millisecond, query)
	}
	require.Zero(t, gjson.GetBytes(c.http("GET", two+"/api/calls?outcome=fault", "").body, "data.#").Int())
	require.Equal(t, 404, c.http("GET", two+"/api/calls/no-such", "").status)
	require.Equal(t, 400, c.http("GET", two+"/api/calls?limit=x", "").status)

	require.Equal(t, id, gjson.GetBytes(c.req("shallot.v1.calls.get", id).body, "call").Str)
	require.Equal(t, id,
		gjson.GetBytes(c.req("shallot.v1.calls.list", `{"session":"s-7","limit":3}`).body, "data.0.call").Str)
	require.Zero(t, gjson.GetBytes(c.req("shallot.v1.tenant.other.calls.list", ``).body, "data.#").Int())
	require.NotEqual(t, "", c.req("shallot.v1.tenant.other.calls.get", id).header("Nats-Service-Error-Code"))

	what := feed(t, two, func() { c.http("POST", one+"/v1/chat/completions", echo) })
	require.Equal(t, []string{"accepted", "hop", "target", "end"}, what)
	page := string(c.http("GET", one+"/metrics", "").body)
	require.Contains(t, page, `shallot_calls_total{kind="model",outcome="ok"}`)
	require.Contains(t, page, `gen_ai_client_operation_duration_seconds_count{`)
	require.Contains(t, page, `shallot_slots{class="demo",kind="model"} 0`, "this process does no such work")
	require.NotContains(t, page, word)
}

// feed follows the events until a call has ended, and returns the kinds of events in the order in which they first
// came.
func feed(t *testing.T, base string, call func()) (kinds []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/events", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	require.True(t, lines.Scan())
	var again sync.WaitGroup
	defer again.Wait()
	begun, what := "", ""
	call() // the first calls may be before the interest has arrived everywhere
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			what = name
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct{ Call string }
		require.NoError(t, json.Unmarshal([]byte(data), &e))
		switch {
		case begun == "" && what == "accepted":
			begun = e.Call
		case begun == "" && what == "end":
			again.Go(call)
		}
		if e.Call == begun && !slices.Contains(kinds, what) {
			kinds = append(kinds, what)
		}
		if e.Call == begun && what == "end" {
			return kinds
		}
	}
	require.FailNow(t, "the feed ended", "%v", lines.Err())
	return nil
}
