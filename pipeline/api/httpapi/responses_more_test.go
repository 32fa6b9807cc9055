package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// What was compacted goes on with any provider: the summary comes back as a message.
func TestAConversationIsCompacted(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("They want onions."), &pipeline.Memory{})
	id := gjson.Get(one.Do(t, "POST", "/v1/responses", askResponse, asA1).Body, "id").Str
	res := two.Do(t, "POST", "/v1/responses/compact", `{"model":"m1","input":"more","previous_response_id":"`+id+`"}`,
		asA1)
	require.Equal(t, 200, res.StatusCode, res.Body)
	require.Equal(t, "response.compaction", gjson.Get(res.Body, "object").Str)
	require.Equal(t, `["message","message","compaction"]`, gjson.Get(res.Body, "output.#.type").Raw)
	require.True(t, gjson.Get(res.Body, "usage").Exists())
	asked := string(one.entry.Last(t).Body)
	require.Equal(t, "more", gjson.Get(asked, "input.2.content.0.text").Str, asked)
	require.Contains(t, gjson.Get(asked, "input.3.content").Str, "summary")

	next := `{"model":"m1","input":[` + strings.Trim(gjson.Get(res.Body, "output").Raw, "[]") +
		`,{"role":"user","content":"so"}]}`
	require.Equal(t, 200, one.Do(t, "POST", "/v1/responses", next, asA1).StatusCode)
	body := string(one.entry.Last(t).Body)
	require.Equal(t, `["user","user","user","user"]`, gjson.Get(body, "input.#.role").Raw)
	require.Equal(t, "Summary of the conversation so far:\n\nThey want onions.",
		gjson.Get(body, "input.2.content.0.text").Str)
	theirs := `{"model":"m1","input":[{"type":"compaction","encrypted_content":"gAAA"}]}`
	require.Equal(t, 200, one.Do(t, "POST", "/v1/responses", theirs, asA1).StatusCode)
	require.Equal(t, theirs, string(one.entry.Last(t).Body), "a provider's own goes to it as it is")
	require.Equal(t, 400, one.Do(t, "POST", "/v1/responses/compact", `{"model":"agent/x","input":"x"}`, asA1).StatusCode)
	require.Equal(t, 404, one.Do(t, "POST", "/v1/responses/compact", `{"model":"m1","input":"x","previous_response_id":"`+
		id+`"}`, asB).StatusCode)
}

// asking are held calls of the first tenant.
type asking struct {
	mu      sync.Mutex
	waits   map[string]api.Approval
	decided []string
}

func (*asking) Approvals(context.Context, string) ([]api.Approval, error) { return nil, nil }

func (a *asking) Approval(_ context.Context, tenant, call string) (api.Approval, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w, ok := a.waits[call]; ok && w.Tenant == tenant {
		return w, nil
	}
	return api.Approval{}, messages.NewFault(messages.NotFound, "no held call")
}

func (a *asking) Decide(_ context.Context, _, call string, decision json.RawMessage, by string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.decided = append(a.decided, by+string(decision))
	delete(a.waits, call)
	return nil
}

// Only an operator decides. The caller whose call it is goes on when one has.
func TestOnlyAnOperatorAnswersWhatACallWaitsFor(t *testing.T) {
	t.Parallel()
	key := func(name string) string { return HashKey(name, []byte("pepper")) }
	keys := keysOf(t, fmt.Sprintf("keys:\n  - {id: a1, hash: %q, tenant: ta}\n  - {id: boss, hash: %q, tenant: ta, "+
		"role: operator}\n", key("a1"), key("boss")))
	for _, who := range []string{"a1", "boss"} {
		desk := &asking{waits: map[string]api.Approval{}}
		entry := &apitest.Entry{Target: saying("unused")}
		g := start(t, entry, func(_ *Config, d *Deps) {
			d.Keys, d.Approvals, d.Responses = keys, desk, responses.New(&pipeline.Memory{}, entry)
			d.Responses.Asks = desk
		})
		ctx, o := t.Context(), responses.Owner{Tenant: "ta", Key: who}
		turn, err := g.s.Responses.Prepare(ctx, o, []byte(`{"model":"m1","input":"x","background":true}`))
		require.NoError(t, err)
		p, err := entry.Accept(ctx, pipeline.Request{Kind: messages.Model, Tenant: "ta", Body: turn.Body})
		require.NoError(t, err)
		first := turn.Record(p.ID(), time.Now().Unix())
		require.NoError(t, g.s.Responses.Begin(ctx, o, first))
		desk.waits[p.ID()] = api.Approval{Call: p.ID(), Tenant: "ta", Kind: messages.Tool, Tool: "pay",
			Question: []byte(`{"arguments":{"n":1}}`)}
		_, err = g.s.Responses.Settle(ctx, o, first.ID, g.s.Responses.Held(ctx, o, first, nil))
		require.NoError(t, err)
		got := g.Do(t, "GET", "/v1/responses/"+first.ID, "", "Authorization: Bearer "+who).Body
		ask := gjson.Get(got, "output.0")
		require.Equal(t, `{"n":1}`, ask.Get("arguments").Str, got)
		answer := `{"model":"m1","input":[{"type":"mcp_approval_response","approve":true,"approval_request_id":"` +
			ask.Get("id").Str + `"}],"previous_response_id":"` + first.ID + `","background":true}`
		res := g.Do(t, "POST", "/v1/responses", answer, "Authorization: Bearer "+who)
		if who == "a1" {
			require.Equal(t, 403, res.StatusCode, res.Body)
			require.Empty(t, desk.decided)
			delete(desk.waits, p.ID()) // an operator has decided
			res = g.Do(t, "POST", "/v1/responses", answer, "Authorization: Bearer "+who)
		} else {
			require.Equal(t, []string{`boss{"decision":"approve"}`}, desk.decided)
		}
		require.Equal(t, 200, res.StatusCode, res.Body)
		require.Equal(t, p.ID(), res.Header.Get("Shallot-Call"))
		c := messages.NewCall(messages.Model, "ta", turn.Body)
		c.ID = p.ID()
		c.SetReply(view.Of(messages.ResponsesWire).TextReply("theirs", "m1", "paid", 7))
		entry.End(c)
		got = g.Do(t, "GET", "/v1/responses/"+gjson.Get(res.Body, "id").Str, "", "Authorization: Bearer "+who).Body
		require.Equal(t, "paid", gjson.Get(got, "output.0.content.0.text").Str, got)
	}
}

// The events of an old response may have gone before it: a reader hears that, and does not wait.
func TestEventsThatAreGoneAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	store := &pipeline.Memory{}
	one, two := gateways(t, saying("Hello"), store)
	res := one.Do(t, "POST", "/v1/responses", `{"model":"m1","input":"x","background":true,"stream":true}`, asA1)
	id := gjson.Get(eventsOf(res.Body)[0], "response.id").Str
	keys, err := store.Keys(t.Context(), "")
	require.NoError(t, err)
	for _, key := range keys {
		if strings.Contains(key, ".events.") {
			require.NoError(t, store.Delete(t.Context(), key))
		}
	}
	res = two.Do(t, "GET", "/v1/responses/"+id+"?stream=true", "", asA1)
	require.Contains(t, res.Body, "not kept any more")
	require.Equal(t, 200, two.Do(t, "GET", "/v1/responses/"+id, "", asA1).StatusCode)
}
