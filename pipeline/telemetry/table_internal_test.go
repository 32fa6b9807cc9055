package telemetry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// measureAll measures a few calls of all sorts.
func measureAll(t *testing.T, m *Telemetry) {
	run(m, modelCall("gpt-4o"), nil)
	run(m, modelCall("gpt-4o"), messages.NewFault(messages.DeadlineExceeded, "late"))
	for _, status := range []int{200, 200, 503} {
		_, done := m.Request(request(t))
		done("/v1/tools", status)
	}
	_, done := m.Served("tools/call", messages.Trace{})
	done("add", "")
}

// clocked are the values that depend on the clock.
var clocked = regexp.MustCompile(
	`^(shallot_call|http_server_request|mcp_server_operation)_duration_seconds_(bucket|sum)`)

// linesOf are the lines of a page about calls, without the values that depend on the clock.
func linesOf(page string) (out []string) {
	for line := range strings.SplitSeq(page, "\n") {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_") {
			continue
		}
		if clocked.MatchString(line) {
			line = line[:strings.LastIndexByte(line, ' ')]
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// What this process counts itself is at /metrics as the library would show it: with a collector the library counts, and
// the page is the same.
func TestThePageIsTheSameWhoeverCounts(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", collector.URL)
	pages := map[bool][]string{}
	for _, own := range []bool{true, false} {
		o := Options{Service: "gateway", Version: "1.2.3", Name: "p1", Metrics: true}
		if !own {
			o.Getenv = os.Getenv
		}
		m, err := New(t.Context(), o)
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
		require.Equal(t, own, m.meters.own != nil)
		measureAll(t, m)
		pages[own] = linesOf(scrape(t, m))
		require.Equal(t, pages[own], linesOf(scrape(t, m)), "to read the page changes nothing")
	}
	require.Equal(t, pages[false], pages[true])
	require.Greater(t, len(pages[true]), 300)
}

// No measurement is lost, however many count at once while others read.
func TestNoMeasurementIsLost(t *testing.T) {
	t.Parallel()
	m := measured(t)
	const each = 500
	var counting, reading sync.WaitGroup
	for range 8 {
		counting.Go(func() {
			for range each {
				run(m, modelCall("gpt-4o"), nil)
			}
		})
	}
	stop := make(chan struct{})
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = m.meters.own.Produce(t.Context())
			}
		}
	})
	counting.Wait()
	close(stop)
	reading.Wait()
	page := scrape(t, m)
	require.Equal(t, "4000", value(t, page, "shallot_calls_total", `outcome="ok"`))
	require.Equal(t, "4000", value(t, page, "shallot_call_duration_seconds_count", `outcome="ok"`))
	require.Equal(t, "400000", value(t, page, "gen_ai_client_token_usage_sum", `gen_ai_token_type="input"`))
	require.Equal(t, "4000", value(t, page, "gen_ai_client_token_usage_bucket", `le="256"`, `gen_ai_token_type="input"`))
	require.Equal(t, "0", value(t, page, "shallot_calls_running"))
}

// Keys beyond the bound, and keys whose labels are equal, have one series together.
func TestEqualLabelsAreOneSeries(t *testing.T) {
	t.Parallel()
	m := measured(t)
	i := m.meters
	for n := range mostLabels + 101 {
		i.calls.add(1, i.outcomes.of(kindOutcome{"model", strings.Repeat("a", n+1)}))
	}
	again := newSeries(i.own, kindOutcome{other, other}, i.outcomes.list)
	i.calls.add(1, again.of(kindOutcome{"model", "a"}))
	page := scrape(t, m)
	require.Equal(t, "2", value(t, page, "shallot_calls_total", `outcome="a"`))
	require.Equal(t, "101", value(t, page, "shallot_calls_total", `outcome="_OTHER"`))
	require.Equal(t, mostLabels+1, strings.Count(page, "\nshallot_calls_total{"))
}
