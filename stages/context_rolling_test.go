package stages_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/stages"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

func tokensOf(msgs []chat.Msg) int { return conversation.Chars{}.Count("m", msgs) }

// round is one turn of a conversation: question, tool, answer, about 800 tokens.
func round(i int) []chat.Msg {
	id := fmt.Sprint("c", i)
	return []chat.Msg{msg("user", sized(fmt.Sprint("question ", i, " "), 100)), calling(id + " look_up"),
		result(id, sized(fmt.Sprint("found ", i, " "), 500)), msg("assistant", sized(fmt.Sprint("answer ", i, " "), 200))}
}

// bill is what a conversation cost: tokens paid for summaries, tokens that the prompts had less, and how often a prompt
// began with the whole prompt of the turn before.
type bill struct{ paid, saved, steps, stable int }

func billOf(t testing.TB, strategy string, turns int) (b bill) {
	who := &summariser{text: sized("what was said so far ", 400)}
	s := mustShape(t, "context-editing", stages.Deps{Store: memories(), Caller: who},
		func(c *editing) { c.Strategy = stages.Strategies{strategy} })
	history := []chat.Msg{msg("system", sized("be kind ", 100))}
	var was []string
	for i := range turns {
		history = append(history, round(i)[:1]...)
		c := call(request(history...))
		_, err := s.Before(t.Context(), c)
		require.NoError(t, err)
		got := chat.Messages(c.Request())
		require.LessOrEqual(t, tokensOf(got), 8000)
		now := raws(got)
		if was != nil && len(now) >= len(was) && slices.Equal(was, now[:len(was)]) {
			b.stable++
		}
		was = now
		b.saved += tokensOf(history) - tokensOf(got)
		history = append(history, round(i)[1:]...)
	}
	for _, k := range who.calls {
		b.paid += tokensOf(chat.Messages(k.Request())) + 400
	}
	b.steps = len(who.calls)
	return b
}

// TestSummariesCostAFifth prints the bill of a conversation of 40 turns.
func TestSummariesCostAFifthOfWhatTheySaveAndThePromptKeepsItsPrefix(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{stages.Hybrid, stages.Summarize} {
		b := billOf(t, strategy, 40)
		t.Logf("%-10s 40 turns: %d summaries, %d tokens paid, %d saved (%.1f%%); prefix kept in %d of 39 turns",
			strategy, b.steps, b.paid, b.saved, 100*float64(b.paid)/float64(b.saved), b.stable)
		require.Less(t, 5*b.paid, b.saved, strategy)
		if strategy == stages.Hybrid { // the default; the threshold of SUMMARIZE is half of it, so it steps twice as often
			require.GreaterOrEqual(t, b.stable, 30)
		}
	}
}

func BenchmarkSummaryBill(b *testing.B) {
	for b.Loop() {
		r := billOf(b, stages.Hybrid, 40)
		b.ReportMetric(float64(r.paid), "tokens-paid")
		b.ReportMetric(float64(r.saved), "tokens-saved")
		b.ReportMetric(float64(r.stable), "prefix-kept/39")
	}
}

func historyTo(n int) []chat.Msg {
	h := []chat.Msg{msg("system", "be kind")}
	for i := range n {
		h = append(h, round(i)...)
	}
	return h
}

func TestAStepReadsTheSummarySoFarAndWhatIsNew(t *testing.T) {
	t.Parallel()
	who := &summariser{text: "first summary"}
	s, _ := summaryStage(t, who, stages.Hybrid, nil)
	shape(t, s, request(historyTo(12)...))
	require.Len(t, who.calls, 1)
	who.text = "second summary"
	c := shape(t, s, request(historyTo(24)...))
	require.Len(t, who.calls, 2)
	asked := string(who.calls[1].Request())
	require.Contains(t, asked, "first summary")
	require.NotContains(t, asked, "question 0 ", "what the summary tells of is not paid for again")
	require.NotContains(t, asked, "question 8 ")
	require.Contains(t, asked, "question 9 ")
	require.Contains(t, string(c.Request()), "second summary")
	require.NotContains(t, string(c.Request()), "first summary")
}

func TestAChangedHistoryIsNotAnsweredWithTheSummaryOfAnother(t *testing.T) {
	t.Parallel()
	who := &summariser{text: "they said Oslo"}
	s, _ := summaryStage(t, who, stages.Hybrid, nil)
	shape(t, s, request(historyTo(12)...))
	edited := historyTo(12)
	edited[1] = msg("user", sized("I meant Bergen ", 100))
	who.text = "they said Bergen"
	require.NotContains(t, string(shape(t, s, request(edited...)).Request()), "Oslo")
	require.Len(t, who.calls, 2)
	require.NotContains(t, string(who.calls[1].Request()), "Oslo")
	// Whoever goes back to the former history finds what was paid for.
	require.Contains(t, string(shape(t, s, request(historyTo(12)...)).Request()), "Oslo")
	require.Len(t, who.calls, 2)
}

func TestCallsOfOneSessionAtOnceKeepEachOthersSummaries(t *testing.T) {
	t.Parallel()
	who := &summariser{text: "S"}
	s, _ := summaryStage(t, who, stages.Hybrid, nil)
	var all sync.WaitGroup
	body := func(i int) []byte {
		h := historyTo(12)
		h[1] = msg("user", sized(fmt.Sprint("branch ", i, " "), 100))
		return request(h...)
	}
	for i := range 3 {
		all.Go(func() {
			_, err := s.Before(t.Context(), call(body(i)))
			require.NoError(t, err)
		})
	}
	all.Wait()
	keys := map[string]bool{}
	for _, k := range who.calls {
		keys[k.IdempotencyKey] = true
	}
	require.Len(t, keys, 3, "histories that differ are summarised apart")
	for i := range 3 {
		shape(t, s, body(i))
	}
	require.Len(t, who.calls, 3, "each found what it had paid for")
}

func TestSummariesOfOneHistoryAreOneCallWhoeverAsks(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for range 2 { // two workers that see no state of each other yet
		who := &summariser{text: "S"}
		s, _ := summaryStage(t, who, stages.Hybrid, nil)
		shape(t, s, request(historyTo(12)...))
		keys[who.calls[0].IdempotencyKey] = true
	}
	require.Len(t, keys, 1, "the second attaches to the first")
}

func TestAFailedSummaryIsNotTriedAgainWithinItsTime(t *testing.T) {
	for _, strategy := range []string{stages.Hybrid, stages.Summarize} {
		synctest.Test(t, func(t *testing.T) {
			who := &summariser{fault: messages.NewFault(messages.ContextLength, "too long")}
			s, _ := summaryStage(t, who, strategy, nil)
			for n := 12; n < 20; n++ {
				c := call(request(historyTo(n)...))
				c.Deadline = time.Now().Add(time.Minute)
				_, err := s.Before(t.Context(), c)
				require.NoError(t, err)
				got := chat.Messages(c.Request())
				require.LessOrEqual(t, tokensOf(got), 8000, "the window takes over")
				require.Equal(t, raws(historyTo(n))[len(historyTo(n))-4:], raws(got[len(got)-4:]))
				require.Equal(t, "failed: context_length", edits(t, c)[0].Summary)
				require.Positive(t, edits(t, c)[0].Dropped)
			}
			require.Len(t, who.calls, 1, strategy)
			<-time.After(11 * time.Minute) // the bubble's clock
			who.fault, who.text = nil, "S"
			c := call(request(historyTo(20)...))
			c.Deadline = time.Now().Add(time.Minute)
			_, err := s.Before(t.Context(), c)
			require.NoError(t, err)
			require.Len(t, who.calls, 2)
			require.Contains(t, string(who.calls[1].Request()), "question 0 ", "what the window had cut is in the summary now")
			require.Equal(t, "made", edits(t, c)[0].Summary)
			require.NotEqual(t, who.calls[0].IdempotencyKey, who.calls[1].IdempotencyKey)
		})
	}
}

func TestASummaryAfterAFailureTellsOfWhatTheWindowHadCut(t *testing.T) {
	t.Parallel()
	who := &summariser{text: "first"}
	s, _ := summaryStage(t, who, stages.Hybrid, func(c *editing) { c.SummaryRetryAfter = 0 })
	shape(t, s, request(historyTo(12)...))
	who.fault = messages.NewFault(messages.ProviderError, "x")
	got := string(shape(t, s, request(historyTo(20)...)).Request())
	require.Contains(t, got, "first", "an older summary is still shown")
	who.fault, who.text = nil, "second"
	shape(t, s, request(historyTo(21)...))
	last := string(who.calls[len(who.calls)-1].Request())
	require.Contains(t, last, "first")
	require.Contains(t, last, "question 9 ")
}

func TestWhatTheSummaryModelReadsIsBoundedByItsWindow(t *testing.T) {
	t.Parallel()
	for name, h := range map[string][]chat.Msg{
		"long messages": append(talk(6, 90_000), msg("user", "now")),
		"many messages": append(talk(4000, 50), msg("user", "now")),
		"mixed":         append(append(talk(300, 10), talk(3, 60_000)...), msg("user", "now")),
		"wide letters":  {msg("user", strings.Repeat("很长的文字", 40_000)), msg("assistant", "ok"), msg("user", "now")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			who := &summariser{text: "S"}
			s, _ := summaryStage(t, who, stages.Hybrid, func(c *editing) { c.SummaryWindow = 2000 })
			shape(t, s, request(h...))
			require.Len(t, who.calls, 1)
			n := 0
			for _, m := range chat.Messages(who.calls[0].Request()) {
				n += len(m.Text())
			}
			require.LessOrEqual(t, n, 3*2000)
			require.Greater(t, n, 2000, "and it is used")
		})
	}
}
