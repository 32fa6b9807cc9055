package agents

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// batchRow is a batch of tool calls, pay above 10 and sign among them wait for a person, and what is decided about it.
type batchRow struct {
	calls   []map[string]any
	decides []decides
	ran     []string // arguments of the tools that ran
	reads   []string // what the model reads of each call, in their order: the beginning, or "nonce" of a tool's own
}

// decides is one answer to the question; says is a part of the error, "held" is any that leaves the run waiting.
type decides struct{ answer, says string }

func pays(amounts ...string) (out []map[string]any) {
	for i, amount := range amounts {
		out = append(out, call(string(rune('a'+i)), "pay", `{"amount":`+amount+`}`))
	}
	return out
}

const ownNonce = `{"nonce":`

var batchRows = map[string]batchRow{
	"nothing runs before, and what needs no yes runs with the others (HI-1, HI-2)": {
		calls: append(pays("50"), call("b", "look", "{}")), decides: []decides{{`{"decision":"approve"}`, ""}},
		ran: []string{`{"amount":50}`, "{}"}, reads: []string{ownNonce, ownNonce}},
	"edited arguments (HI-3)": {calls: pays("50"), decides: []decides{
		{`{"decision":"edit","arguments":{"amount":3}}`, ""}}, ran: []string{`{"amount":3}`}, reads: []string{ownNonce}},
	"rejected with a reason (HI-4)": {calls: pays("50"), decides: []decides{
		{`{"decision":"reject","reason":"too dear"}`, ""}}, reads: []string{"too dear"}},
	"two approved and one rejected (HI-5)": {calls: pays("50", "60", "70"), decides: []decides{
		{`{"decisions":{"a":{"decision":"approve"},"b":{"decision":"reject","reason":"no"},` +
			`"c":{"decision":"approve"}}}`, ""}},
		ran: []string{`{"amount":50}`, `{"amount":70}`}, reads: []string{ownNonce, "no", ownNonce}},
	"one decision about two calls (HI-6)": {calls: pays("50", "60"), decides: []decides{
		{`{"decision":"approve"}`, "a, b"}, {`{"id":"a","decision":"approve"}`, "no decision yet about b"},
		{`{"id":"a","decision":"reject"}`, "decided already, by ann"}, {`{"decision":"approve"}`, ""}},
		ran: []string{`{"amount":50}`, `{"amount":60}`}, reads: []string{ownNonce, ownNonce}},
	"an unknown id (HI-7)": {calls: pays("50"), decides: []decides{
		{`{"id":"zz","decision":"approve"}`, "no decision yet about a"}, {`{"decision":"approve"}`, ""}},
		ran: []string{`{"amount":50}`}, reads: []string{ownNonce}},
	"a decision that is not allowed (HI-8)": {calls: []map[string]any{call("a", "sign", "{}")}, decides: []decides{
		{`{"decision":"reject"}`, "allowed: approve"}, {`{"decision":"approve"}`, ""}},
		ran: []string{"{}"}, reads: []string{ownNonce}},
	"null (HI-10)": {calls: pays("50"), decides: []decides{
		{`null`, "no decision yet about a"}, {`{"decision":"approve"}`, ""}},
		ran: []string{`{"amount":50}`}, reads: []string{ownNonce}},
	"a policy that is not about these arguments (HI-11)": {calls: pays("5"), ran: []string{`{"amount":5}`},
		reads: []string{ownNonce}},
	"an edit decides, and what comes after it is late": {calls: pays("50"), decides: []decides{
		{`{"decision":"edit","arguments":{"amount":"60"}}`, ""}, {`{"decision":"approve"}`, "decided already"}},
		ran: []string{`{"amount":"60"}`}, reads: []string{ownNonce}},
}

func TestBatchesAreDecidedOnEachCarrier(t *testing.T) {
	t.Parallel()
	model := func(turn int, request []byte) ([]map[string]any, string) {
		if turn == 0 {
			return batchRows[strings.TrimSpace(strings.Join(words(request), " "))].calls, ""
		}
		var read []string
		for _, m := range chat.Messages(request) {
			if m.Role() == "tool" {
				read = append(read, m.Text())
			}
		}
		raw, _ := json.Marshal(read)
		return nil, string(raw)
	}
	onEachCarrier(t, "", model, func(s *system, n *bus.Node, t *testing.T) {
		for name, row := range batchRows {
			t.Run(name, func(t *testing.T) { s.tryBatch(t, n, name, row) })
		}
	})
}

func (s *system) tryBatch(t *testing.T, n *bus.Node, name string, row batchRow) {
	id := s.begin(t, n, "", name, "")
	for i, d := range row.decides {
		if i == 0 {
			held := s.held(n, id)
			require.Equal(t, strings.Contains(name, "HI-1,"), strings.Contains(string(held.Question), "auto_approved"))
			s.mu.Lock()
			require.Empty(t, s.tools)
			s.mu.Unlock()
		}
		_, err := n.Decide(t.Context(), "acme", id, json.RawMessage(d.answer), "ann")
		if d.says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, d.says)
		if strings.HasPrefix(d.says, "no decision") {
			require.True(t, errors.Is(err, pipeline.ErrHeld))
		}
	}
	c, err := n.Result(t.Context(), "acme", id)
	require.NoError(t, err)
	_, list, _ := strings.Cut(text(t, c), " ")
	var read []string
	require.NoError(t, json.Unmarshal([]byte(list), &read), list)
	require.Len(t, read, len(row.reads))
	for i, want := range row.reads {
		require.Contains(t, read[i], want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.tools, len(row.ran))
	for _, args := range row.ran {
		require.Equal(t, 1, s.tools[args], args)
	}
	require.Len(t, s.turns[0], 1, "the model is not asked again")
}
