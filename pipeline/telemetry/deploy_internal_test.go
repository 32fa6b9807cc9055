package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// everything measures a bit of all that there is, and returns the page.
func everything(t *testing.T) string {
	t.Helper()
	m := measured(t)
	one := func() int64 { return 1 }
	require.NoError(t, m.Watch(Process{
		Stages:     func() []StageState { return []StageState{{messages.Model, "audit", true, 1}} },
		Queues:     func() []QueueState { return []QueueState{{Queue: "model-openai", Waiting: 1}} },
		Classes:    func() []ClassState { return []ClassState{{Kind: messages.Model, Class: "openai", Slots: 1}} },
		Connected:  func() bool { return true },
		Reconnects: one,
		Approvals:  one,
		Lost:       one,
		Dead:       one,
		Late:       one,
		HandedBack: one,
		Refused:    one,
	}))
	run(m, modelCall("gpt-4o"), nil)
	c := messages.NewCall(messages.Tool, "acme", []byte(`{}`))
	c.Tool = "read_file"
	w := m.Observer().Owns(c, pipeline.Ownership{Again: true})
	c.Fail(messages.NewFault(messages.Blocked, "no"))
	for _, v := range []pipeline.Verdict{pipeline.Stop(), pipeline.Hold(nil)} {
		w.Ran(c, pipeline.PhaseRun{Report: pipeline.Report{Stage: "approval", Phase: messages.Before, Verdict: v}})
	}
	w.Target(c, pipeline.TargetRun{Class: "mcp-files"})
	_, done := m.Request(request(t))
	done("/v1/tools", 500)
	_, served := m.Served("tools/list", messages.Trace{})
	served("", "")
	return scrape(t, m)
}

var (
	metricNames = regexp.MustCompile(`\b(?:shallot|gen_ai|http|messaging|mcp|process|go)_[a-z0-9_]+\b`)
	selectors   = regexp.MustCompile(`\b([a-z_0-9]+)\{([^}]*)\}`)
	groupings   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	labelNames  = regexp.MustCompile(`([a-z_0-9]+)\s*(?:=~|!~|!=|=)`)
	legends     = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?([a-z_0-9]+) ?\}\}`)
)

// exported are the names of the page, each with its labels.
func exported(page string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.SplitSeq(page, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		out[name] = append(out[name], "instance", "job")
		if set := selectors.FindStringSubmatch(line); set != nil {
			for _, l := range labelNames.FindAllStringSubmatch(set[2], -1) {
				out[name] = append(out[name], l[1])
			}
		}
	}
	return out
}

// checkQuery fails where a query names a metric or a label that there is not.
func checkQuery(t *testing.T, known map[string][]string, expr, legend string) {
	t.Helper()
	var labels []string
	used := 0
	bare := groupings.ReplaceAllString(expr, "")
	bare = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(bare, "")
	for _, name := range metricNames.FindAllString(bare, -1) {
		require.Contains(t, known, name, "%s", expr)
		labels = append(labels, known[name]...)
		used++
	}
	require.Positive(t, used, "no metric of ours in %s", expr)
	var asked []string
	for _, s := range selectors.FindAllStringSubmatch(expr, -1) {
		for _, l := range labelNames.FindAllStringSubmatch(s[2], -1) {
			require.Contains(t, known[s[1]], l[1], "%s has no label %s: %s", s[1], l[1], expr)
		}
	}
	for _, g := range groupings.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			asked = append(asked, strings.TrimSpace(l))
		}
	}
	for _, l := range legends.FindAllStringSubmatch(legend, -1) {
		asked = append(asked, l[1])
	}
	for _, l := range asked {
		require.True(t, slices.Contains(labels, l), "no metric has the label %s: %s", l, expr)
	}
}

// Every query of the dashboard and of the alert rules names metrics and labels that are exported.
func TestDashboardAndAlertsNameWhatIsExported(t *testing.T) {
	t.Parallel()
	known := exported(everything(t))
	raw, err := os.ReadFile("../../deploy/grafana/shallot.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &board))
	queries := 0
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			checkQuery(t, known, q.Expr, q.LegendFormat)
			queries++
		}
	}
	require.Greater(t, queries, 30)

	raw, err = os.ReadFile("../../deploy/prometheus/alerts.yaml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &rules))
	alerts := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			checkQuery(t, known, r.Expr, r.Annotations["summary"])
			alerts++
		}
	}
	require.Greater(t, alerts, 8)
}

// The names of our own metrics are written down, so that a dashboard somewhere does not lose one unnoticed.
func TestTheMetricsOfOurOwnAreDocumented(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	known := exported(everything(t))
	for name := range known {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") && name != "target_info" {
			require.Contains(t, string(docs), "`"+name+"`")
		}
	}
	for _, name := range metricNames.FindAllString(string(docs), -1) {
		_, plain := known[name]
		_, histogram := known[name+"_count"]
		label := false
		for _, labels := range known {
			label = label || slices.Contains(labels, name)
		}
		require.True(t, plain || histogram || label, "docs/metrics.md names %s, which is not exported", name)
	}
}
