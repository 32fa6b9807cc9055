package stages

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// contextRows are conversations over many calls: what a session keeps of them, and what it pays for.
func contextRows() []row {
	const n = 24
	conversation := func(tokens int) (out []turn) {
		h := rounds(n, tokens)
		for i := range n {
			out = append(out, turn{body: request(h[:2+4*i]...)})
		}
		return out
	}
	rolling := row{id: "a conversation is summarised in steps, and the prompt keeps its prefix between them (CX-1)",
		with: []made{{"context-editing", ""}}, turns: conversation(270), calls: n, summary: sized("so far ", 300),
		check: func(t *testing.T, o outcome) {
			paid, saved, stable, was := 0, 0, 0, ""
			for _, s := range o.summaries {
				paid += len(s)/4 + 300
			}
			for i, raw := range o.seen {
				saved += (len(request(rounds(n, 270)[:2+4*i]...)) - len(raw)) / 4
				now := messagesText(raw)
				if was != "" && strings.HasPrefix(now, was) {
					stable++
				}
				was = now
			}
			require.LessOrEqual(t, len(o.summaries), 4)
			require.Less(t, 5*paid, saved)
			require.GreaterOrEqual(t, stable, n-1-len(o.summaries))
		}}
	failing := row{id: "a summary that failed is not paid for again, and the window keeps the budget (CX-2)",
		with: []made{{"context-editing", ""}}, turns: conversation(270), calls: n, summary: fault(messages.ContextLength),
		check: func(t *testing.T, o outcome) {
			require.Len(t, o.summaries, 1)
			for _, raw := range o.seen {
				require.Less(t, len(messagesText(raw))/4, 9000)
			}
			require.Contains(t, string(o.last().Notes[messages.NoteContextEditing]), "failed: context_length")
		}}
	whole := failing
	whole.id = "a strategy that only summarises keeps the budget all the same when no summary is to be had (CX-2)"
	whole.with = []made{{"context-editing", "strategy: SUMMARIZE"}}
	return []row{rolling, failing, whole}
}

func messagesText(request []byte) string {
	var b strings.Builder
	for _, m := range chat.Messages(request) {
		b.Write(m.Raw)
	}
	return b.String()
}
