package stages_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// historyOf is a request of n messages as agents make them: questions, parallel tool calls, results, answers.
func historyOf(n int) []byte {
	msgs := []chat.Msg{msg("system", "You are helpful.")}
	filler := strings.Repeat("some words of a long story ", 8)
	for i := 0; len(msgs) < n; i++ {
		msgs = append(msgs, msg("user", fmt.Sprintf("question %d, write to a%d@example.org: %s", i, i, filler)),
			calling(fmt.Sprintf("a%d look_up", i), fmt.Sprintf("b%d look_up", i)),
			result(fmt.Sprintf("a%d", i), filler), result(fmt.Sprintf("b%d", i), filler), msg("assistant", filler))
	}
	body := request(msgs[:n]...)
	var tools []string
	for i := range 30 {
		tools = append(tools,
			fmt.Sprintf(`{"type":"function","function":{"name":"tool_%d","description":"does thing %d with words"}}`, i, i))
	}
	return rawjson.SetField(body, "tools", []byte("["+strings.Join(tools, ",")+"]"))
}

// everyModelStage makes each model stage of the registry with a configuration that gives it work.
func everyModelStage(t testing.TB) []pipeline.Stage {
	t.Helper()
	d := stages.Deps{Store: memories(), Caller: &summariser{text: "a short summary"},
		Serves: func(string) bool { return true }}
	limit := int64(1 << 40)
	var out []pipeline.Stage
	for _, spec := range stages.All() {
		if spec.Kind != messages.Model {
			continue
		}
		conf := spec.Config()
		switch c := conf.(type) {
		case *stages.ContextEditingConfig:
			// Every strategy, with bounds that any history of the benchmarks is over.
			for _, name := range []string{stages.Trim, stages.Summarize, stages.SlidingWindow, stages.Hybrid,
				stages.ClearToolUsing} {
				v := *c
				v.Strategy, v.MaxTokens, v.SummarizeThreshold, v.WindowRounds = stages.Strategies{name}, 1200, 600, 2
				v.ClearToolUses.Trigger = 100
				s, _, err := spec.Make(&v, d)
				require.NoError(t, err)
				s.Name += "-" + strings.ToLower(name)
				out = append(out, s)
			}
			continue
		case *stages.PIIConfig:
			c.Rules = []stages.PIIRule{{Type: "email", Strategy: "REDACT"}}
		case *stages.CallLimitConfig:
			c.ThreadLimit = &limit
		case *stages.BudgetConfig:
			c.TokensPerDay = &limit
		case *stages.SubAgentConfig:
			c.Agents = []stages.SubAgentSpec{{Name: "facts", Description: "knows facts",
				Keywords: []stages.SubAgentKeyword{{Keyword: "question", Weight: 10}}}}
		}
		s, _, err := spec.Make(conf, d)
		require.NoError(t, err, spec.Name)
		out = append(out, s)
	}
	return out
}

// passStage runs a call through one stage, both phases, without a bus.
func passStage(t testing.TB, s pipeline.Stage, body, reply []byte) {
	c := call(body)
	c.ID = "0190b0c0-0000-7000-8000-000000000000" // one id: what a stage keeps for each call does not grow
	c.Deadline = time.Now().Add(time.Minute)
	ctx := context.Background()
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply(reply)
		return nil
	})
	c, err := pipeline.Chain([]pipeline.Stage{s}, target).Call(ctx, c)
	if err != nil || c.Fault != nil {
		t.Fatalf("stage %s: %v %v", s.Name, err, c.Fault)
	}
}

var shortReply = chat.TextReply("x", "m", "A short answer.", 1)

// BenchmarkHistory is the cost of each model stage, before and after, over growing histories.
func BenchmarkHistory(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		body := historyOf(n)
		for _, s := range everyModelStage(b) {
			b.Run(fmt.Sprintf("%s/%d", s.Name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					passStage(b, s, body, shortReply)
				}
			})
		}
	}
}

// TestHistoryCostIsLinear compares, in one run, what ten times the history costs. It is no parallel test: it counts
// what the process allocates. The shared cost of a call (compacting its body) is in both sides.
func TestHistoryCostIsLinear(t *testing.T) {
	const most = 14 // strictly linear is 10, quadratic 100; the time is only shown, because the machine may be busy
	small, large := historyOf(100), historyOf(1000)
	for _, s := range everyModelStage(t) {
		cost := func(body []byte) (allocs, bytes float64, took time.Duration) {
			const runs = 5
			passStage(t, s, body, shortReply) // what is built once is built
			var was, is runtime.MemStats
			runtime.ReadMemStats(&was)
			for range runs {
				begin := time.Now()
				passStage(t, s, body, shortReply)
				if d := time.Since(begin); took == 0 || d < took {
					took = d
				}
			}
			runtime.ReadMemStats(&is)
			return float64(is.Mallocs-was.Mallocs) / runs, float64(is.TotalAlloc-was.TotalAlloc) / runs, took
		}
		a1, b1, t1 := cost(small)
		a2, b2, t2 := cost(large)
		t.Logf("%-32s allocations %6.0f -> %7.0f (%.1f)  bytes %8.0f -> %9.0f (%.1f)  time %8s -> %9s (%.1f)",
			s.Name, a1, a2, a2/a1, b1, b2, b2/b1, t1, t2, float64(t2)/float64(t1))
		require.Less(t, a2/a1, float64(most), "allocations of %s", s.Name)
		require.Less(t, b2/b1, float64(most), "bytes of %s", s.Name)
	}
}
