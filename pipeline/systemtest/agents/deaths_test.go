package agents

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// Every process of the installation dies in turn, again and again; the run ends as if none had.
func TestARunSurvivesTheDeathOfEveryProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("a tool whose process died is given up when that process is known to be gone, after 13 s")
	}
	t.Parallel()
	s := newSystem(t)
	s.survives(8, s.processes())
}

// processes starts those of an installation. Each of the functions kills one and starts it again.
func (s *system) processes() (deaths []func()) {
	for _, p := range []partSpec{s.part("door", true, false), s.part("owner", true, false),
		s.part("worker1", false, true), s.part("worker2", false, true)} {
		was := launch(s.t, p)
		deaths = append(deaths, func() {
			was.kill()
			was = launch(s.t, p)
		})
	}
	return deaths
}

// survives makes a run of so many turns with two tools each, in which somebody dies in each turn: while the model
// thinks in the first half, while a tool works in the second.
func (s *system) survives(turns int, deaths []func()) {
	s.t.Helper()
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == turns {
			return nil, "done"
		}
		return []map[string]any{call("a", "look", fmt.Sprintf(`{"turn":%d,"n":1}`, turn)),
			call("b", "look", fmt.Sprintf(`{"turn":%d,"n":2}`, turn))}, ""
	}
	reached, died := make(chan int, turns), make([]chan struct{}, turns)
	for i := range died {
		died[i] = make(chan struct{})
	}
	seen := make([]atomic.Bool, turns)
	s.gate = func(turn int, tool string) {
		if turn == turns || (tool != "") != (turn >= turns/2) {
			return
		}
		if !seen[turn].Swap(true) {
			reached <- turn
		}
		select {
		case <-died[turn]:
		case <-s.t.Context().Done(): // the test has failed
		}
	}
	door := s.node(false, false) // it only accepts
	r := request()
	r.Submit, r.Deadline = true, time.Now().Add(20*time.Minute)
	p, err := door.Accept(s.t.Context(), r)
	require.NoError(s.t, err)
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Minute)
	defer cancel()
	for i := range turns {
		select {
		case turn := <-reached:
			require.Equal(s.t, i, turn, "one turn after the other")
			deaths[i%len(deaths)]()
			close(died[i])
		case <-ctx.Done():
			s.t.Fatal("the run does not go on")
		}
	}
	c, err := door.Result(ctx, "acme", p.ID())
	require.NoError(s.t, err)
	require.NotNil(s.t, c)
	s.judge(c, turns)
}

// judge holds the end of a run to what upstream has logged: it says what the final model call was told, no finished
// step was made twice, and no tool ran twice.
func (s *system) judge(c *messages.Call, turns int) {
	s.t.Helper()
	require.Contains(s.t, text(s.t, c), "done")
	s.mu.Lock()
	defer s.mu.Unlock()
	for args, n := range s.tools {
		require.Equal(s.t, 1, n, "tool %s", args)
	}
	bought := 0
	for turn := range turns + 1 {
		require.NotEmpty(s.t, s.turns[turn])
		bought += len(s.turns[turn])
	}
	require.LessOrEqual(s.t, bought, turns+1+turns/2, "only what was under way with a process that died was bought again")
	s.t.Logf("%d deaths, %d model calls for %d turns, %d tool calls", turns, bought, turns+1, len(s.tools))
}
