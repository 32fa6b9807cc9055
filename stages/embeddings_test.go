package stages_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

const (
	toEmbed  = `{"model":"p","x-big":9007199254740993,"input":["I am jane@example.com","sun"],"dimensions":2}`
	embedded = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,1]},{"object":"embedding",` +
		`"index":1,"embedding":[1,0.25]}],"model":"p","usage":{"prompt_tokens":10,"total_tokens":10}}`
)

// embedder gives the same vectors whatever it is asked, after so many failures.
type embedder struct {
	fails int
	seen  [][]byte
}

func (m *embedder) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	m.seen = append(m.seen, c.Request())
	if len(m.seen) <= m.fails {
		return messages.NewFault(messages.ProviderLimited, "overloaded").From(messages.TargetOrigin)
	}
	c.SetReply([]byte(embedded))
	return nil
}

// Every model stage of the chain passes requests for embeddings: those that shape conversations leave every byte, with
// a configuration that changes any conversation; the others do what they are for.
func TestStagesOnEmbeddings(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		config string
		fails  int
		calls  int                                         // how often the call is made; 0: once
		want   func(*testing.T, *embedder, *messages.Call) // nil: every byte stays, both ways
	}{
		"audit":       {},
		"logging":     {},
		"pair-repair": {},
		"context-editing": {
			config: "strategy: TRIM\nmax-tokens: 1\ntrim-keep-first: 1\ntrim-keep-last: 1"},
		"sub-agent":      {config: "min-match-score: 1\nagents: [{name: geo, keywords: [{keyword: sun, weight: 9}]}]"},
		"tool-selection": {config: "max-tools: 1\nalways-include: []"},
		"todo-list":      {},
		"model-fallback": {config: "fallback-models: [q]"},
		"model-retry": {config: "base-delay: 1ms\njitter: 0", fails: 1,
			want: func(t *testing.T, m *embedder, c *messages.Call) {
				require.Len(t, m.seen, 2)
				require.Equal(t, toEmbed, string(m.seen[1]))
				require.Equal(t, embedded, string(c.Reply()))
			}},
		"pii": {want: func(t *testing.T, m *embedder, c *messages.Call) {
			require.Equal(t, `{"model":"p","x-big":9007199254740993,"input":["I am [REDACTED_EMAIL]","sun"],"dimensions":2}`,
				string(m.seen[0]))
			require.Equal(t, embedded, string(c.Reply()))
		}},
		"model-cache": {calls: 2, want: func(t *testing.T, m *embedder, c *messages.Call) {
			require.Len(t, m.seen, 1)
			require.Equal(t, embedded, string(c.Reply()))
		}},
		"call-limit": {config: "run-limit: 1\nexit-behavior: ERROR", calls: 2,
			want: func(t *testing.T, m *embedder, c *messages.Call) {
				require.Len(t, m.seen, 1)
				require.Equal(t, messages.LimitExceeded, c.Fault.Code)
			}},
		"budget": {config: "tokens-per-day: 10", calls: 2, want: func(t *testing.T, m *embedder, c *messages.Call) {
			require.Len(t, m.seen, 1)
			require.Equal(t, messages.LimitExceeded, c.Fault.Code)
			require.Contains(t, c.Fault.Message, "10 of 10 tokens")
		}},
	}
	for _, spec := range stages.All() {
		if spec.Kind != messages.Model {
			continue
		}
		row, ok := rows[spec.Name]
		require.True(t, ok, "the stage %s has no row", spec.Name)
		t.Run(spec.Name, func(t *testing.T) {
			t.Parallel()
			m := &embedder{fails: row.fails}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, spec.Name, row.config, harnessDeps())}, Target: m}
			var c *messages.Call
			for range cmp.Or(row.calls, 1) {
				c = messages.NewCall(messages.Model, "t", []byte(toEmbed))
				c.Wire, c.Session, c.Run, c.Deadline = messages.EmbeddingsWire, "s", "r", time.Now().Add(time.Minute)
				c = h.Call(t, context.Background(), c)
			}
			if row.want != nil {
				row.want(t, m, c)
				return
			}
			require.Nil(t, c.Fault)
			require.Equal(t, toEmbed, string(m.seen[0]))
			require.Equal(t, embedded, string(c.Reply()))
		})
	}
}
