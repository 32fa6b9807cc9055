package agents

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
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

// A stage that is one function around the call, and asks twice, survives the death of its process while it waits for
// either of its answers: what it has asked and heard is in the call.
func TestAWrappedStageOfARunSurvivesTheDeathOfItsProcessBetweenItsHalves(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.stages, s.hosts = "wrap", "none"
	s.model = func(turn int, request []byte) ([]map[string]any, string) {
		if turn == 1 { // the second time it is asked, it is told the first answer
			return nil, "after " + last(request).Text()
		}
		return nil, "first"
	}
	host := s.part("host", false, false)
	host.Hosts = "only"
	was := launch(t, host)
	asked, died := make(chan int), make(chan struct{})
	s.gate = func(turn int, _ string) {
		asked <- turn
		<-died
	}
	p, err := s.node(true, true).Accept(t.Context(), request())
	require.NoError(t, err)
	for want := range 2 { // the stage's process dies while the model thinks, and another one comes
		select {
		case turn := <-asked:
			require.Equal(t, want, turn)
		case <-time.After(60 * time.Second):
			t.Fatal("the model is not asked")
		}
		was.kill()
		was = launch(t, host)
		died <- struct{}{}
	}
	said := text(t, s.end(p))
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.turns[0], 1, "nothing is asked again")
	require.Len(t, s.turns[1], 1)
	require.Equal(t, s.turns[1][0]+" after "+s.turns[0][0]+" first", said)
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
	s.model = func(turn int, request []byte) ([]map[string]any, string) {
		if turn == turns {
			return nil, heard(request)
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

// heard is what a request brings of the answers before: the nonces of the models and of the tools, in their order, "?"
// for a tool that nobody knows the outcome of.
func heard(request []byte) string {
	var out []string
	for _, m := range chat.Messages(request) {
		switch {
		case m.Role() == "assistant":
			nonce, _, _ := strings.Cut(m.Text(), " ")
			out = append(out, nonce)
		case m.Role() == "tool" && strings.Contains(m.Text(), string(messages.OutcomeUnknown)):
			out = append(out, "?")
		case m.Role() == "tool":
			out = append(out, gjson.Get(m.Text(), "nonce").String())
		}
	}
	return strings.Join(out, " ")
}

// judge holds the end of a run to what upstream has logged: the final answer has one nonce of each turn and of each
// tool, no finished step was made again, and no tool ran twice. A tool whose process died with it may have an unknown
// outcome.
func (s *system) judge(c *messages.Call, turns int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	said := strings.Fields(text(s.t, c))[1:]
	require.Len(s.t, said, 3*turns, "a model and two tools a turn")
	unknown := 0
	for i, nonce := range said {
		switch {
		case i%3 == 0:
			require.Contains(s.t, s.turns[i/3], nonce, "of turn %d", i/3)
		case nonce == "?":
			unknown++
		default:
			require.True(s.t, s.gave[nonce], "%s is of no tool", nonce)
			delete(s.gave, nonce)
		}
	}
	require.Empty(s.t, s.again, "turns that were over")
	for args, n := range s.tools {
		require.Equal(s.t, 1, n, "tool %s", args)
	}
	bought := 0
	for turn := range turns + 1 {
		bought += len(s.turns[turn])
	}
	require.LessOrEqual(s.t, bought, turns+1+turns/2, "only what was under way with a process that died was bought again")
	require.LessOrEqual(s.t, unknown, turns, "both tools of the turns in which a tool works")
	s.t.Logf("%d deaths, %d model calls for %d turns, %d tools, %d of unknown outcome", turns, bought, turns+1,
		len(s.tools), unknown)
}
