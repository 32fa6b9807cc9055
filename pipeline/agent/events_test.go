package agent_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/agent"
)

func TestWhoFollowsARunGetsEachEventOnceWhereverTheyLeftOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tool = echoTool
	w.model = script([]wanted{{"a", "add", "{}"}},
		"The answer is four, as everybody knows who can add. "+strings.Repeat("It is. ", 60))
	c := w.call(hello)
	c.Stream = true
	w.run(c)
	records, err := agent.Log{Store: &w.store}.Read(t.Context(), "default", c.ID, 0)
	require.NoError(t, err)
	whole := follow(t, c.ID, agent.Mark{Step: -1}, records, nil)
	var types []string
	for i, e := range whole {
		types = append(types, e.Type)
		require.True(t, i == 0 || whole[i-1].At.Before(e.At), "marks rise")
	}
	require.Equal(t, []string{"run.started", "message", "tool.called", "tool.ended", "text.delta",
		"message", "run.ended"}, types)
	require.Greater(t, len(w.shown), 2)

	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		live := follow(t, c.ID, agent.Mark{Step: -1}, records, w.shown)
		cut := rnd.IntN(len(live))
		at, err := agent.ParseMark(live[cut].At.String())
		require.NoError(t, err)
		pieces := w.shown[rnd.IntN(len(w.shown)):] // the first of them were missed
		rest := follow(t, c.ID, at, records, pieces)
		require.Equal(t, text(whole), text(append(live[:cut+1:cut+1], rest...)), "seed %d, cut at %s", seed, at)
	}
}

// follow follows a run whose live pieces of text come before the record of their step.
func follow(t *testing.T, run string, after agent.Mark, records []agent.Record,
	pieces []agent.Event) (out []agent.Event) {
	t.Helper()
	f := agent.NewFollower(run, after)
	for n, r := range records {
		for _, e := range pieces {
			if e.At.Step == n+n%2 { // also before the record of the step before
				out = append(out, f.Text(e)...)
			}
		}
		out = append(out, f.Record(r)...)
	}
	return out
}

// text is what a reader has of the run: texts joined, and the types of all other events.
func text(events []agent.Event) (out string) {
	for _, e := range events {
		if e.Type != agent.TextDelta {
			out += "[" + e.Type + e.At.String() + "]"
			continue
		}
		var d struct {
			Text string `json:"text"`
		}
		_ = json.Unmarshal(e.Data, &d)
		out += d.Text
	}
	return out
}

func TestMarks(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"3", "x.1", "1.x", "-1.2", "1.-2", "1.2.3"} {
		_, err := agent.ParseMark(bad)
		require.Error(t, err, bad)
	}
	m, err := agent.ParseMark("3.120")
	require.NoError(t, err)
	require.Equal(t, agent.Mark{Step: 3, Place: 120}, m)
}
