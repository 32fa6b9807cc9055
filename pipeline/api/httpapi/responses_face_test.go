package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	wires "github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

const askResponse = `{"model":"m1","input":"hi","instructions":"be kind","metadata":{"a":"b"},"x":1.50}`

// saying is a target on the responses wire whose items have ids of the call's text.
func saying(text string) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		reply := view.Of(messages.ResponsesWire).TextReply("theirs", "m1", text, 7)
		if c.Stream {
			for _, e := range wires.Replay(messages.ResponsesWire, nil, reply) {
				if wires.Ends(e) {
					continue
				}
				if err := emit(e); err != nil {
					return err
				}
			}
		}
		c.SetReply(reply)
		return nil
	}
}

// gateways are two gateways on one store and one entry, with the keys a1 and a2 of one tenant and b of another.
func gateways(t *testing.T, target pipeline.TargetFunc, store pipeline.Store, edit ...func(*Deps)) (
	one, two *testGateway) {
	t.Helper()
	key := func(name string) string { return HashKey(name, []byte("pepper")) }
	keys := keysOf(t, fmt.Sprintf("keys:\n  - {id: a1, hash: %q, tenant: ta}\n  - {id: a2, hash: %q, tenant: ta}\n"+
		"  - {id: b, hash: %q, tenant: tb}\n", key("a1"), key("a2"), key("b")))
	entry := &apitest.Entry{Target: target, Left: make(chan string, 1)}
	make1 := func() *testGateway {
		return start(t, entry, func(_ *Config, d *Deps) {
			d.Keys, d.Responses = keys, responses.New(store, entry)
			d.Cancel = func(string) {}
			for _, e := range edit {
				e(d)
			}
		})
	}
	return make1(), make1()
}

const (
	asA1 = "Authorization: Bearer a1"
	asA2 = "Authorization: Bearer a2"
	asB  = "Authorization: Bearer b"
)

// required are the keys that clients want in every response.
var required = strings.Fields("id object created_at completed_at status incomplete_details model " +
	"previous_response_id " +
	"instructions output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty " +
	"frequency_penalty top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store " +
	"background service_tier metadata safety_identifier prompt_cache_key")

func TestAResponseHasEveryKeyAndIsThereAtOnce(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	res := one.Do(t, "POST", "/v1/responses", askResponse, asA1)
	require.Equal(t, 200, res.StatusCode, res.Body)
	for _, key := range required {
		require.True(t, gjson.Get(res.Body, key).Exists(), key)
	}
	id := gjson.Get(res.Body, "id").Str
	require.Equal(t, "resp_"+res.Header.Get("Shallot-Call"), id)
	require.True(t, gjson.Get(res.Body, "store").Bool())
	require.Equal(t, "be kind", gjson.Get(res.Body, "instructions").Str)
	require.Equal(t, askResponse, string(one.entry.Last(t).Body), "to the model it goes byte for byte")
	require.Equal(t, res.Body, two.Do(t, "GET", "/v1/responses/"+id, "", asA1).Body)

	items := two.Do(t, "GET", "/v1/responses/"+id+"/input_items", "", asA1)
	require.Equal(t, "hi", gjson.Get(items.Body, "data.0.content.0.text").Str)
	require.NotEmpty(t, gjson.Get(items.Body, "data.0.id").Str)
	require.Equal(t, gjson.Get(items.Body, "data.0.id").Str, gjson.Get(items.Body, "last_id").Str)

	require.Equal(t, 400, one.Do(t, "POST", "/v1/responses/"+id+"/cancel", "", asA1).StatusCode)
	require.True(t, gjson.Get(one.Do(t, "DELETE", "/v1/responses/"+id, "", asA1).Body, "deleted").Bool())
	require.Equal(t, 404, two.Do(t, "GET", "/v1/responses/"+id, "", asA1).StatusCode)
}

func TestOnlyTheKeyThatMadeAResponseSeesIt(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	id := gjson.Get(one.Do(t, "POST", "/v1/responses", askResponse, asA1).Body, "id").Str
	made := one.Do(t, "POST", "/v1/conversations", `{"items":[{"role":"user","content":"x"}]}`, asA1)
	talk := gjson.Get(made.Body, "id").Str
	for _, who := range []string{asA2, asB} {
		for _, try := range []string{"GET /v1/responses/", "DELETE /v1/responses/", "POST /v1/responses/%s/cancel",
			"GET /v1/responses/%s/input_items", "GET /v1/conversations/", "DELETE /v1/conversations/",
			"POST /v1/conversations/", "GET /v1/conversations/%s/items", "GET /v1/conversations/%s/items/in_%s_0"} {
			method, path, _ := strings.Cut(try, " ")
			name := id
			if strings.Contains(path, "conversations") {
				name = talk
			}
			if !strings.Contains(path, "%s") {
				path += "%s"
			}
			path = strings.ReplaceAll(path, "%s", name)
			require.Equal(t, 404, two.Do(t, method, path, "", who).StatusCode, try)
		}
		for _, more := range []string{`"input":"x","previous_response_id":"` + id + `"`,
			`"input":"x","conversation":"` + talk + `"`, `"input":[{"type":"item_reference","id":"msg_theirs"}]`,
			`"input":[{"id":"in_` + id + `_0"}]`} {
			for _, path := range []string{"", "/input_tokens", "/compact"} {
				res := two.Do(t, "POST", "/v1/responses"+path, `{"model":"m1",`+more+`}`, who)
				require.Equal(t, 404, res.StatusCode, res.Body)
			}
		}
	}
	require.Equal(t, 200, one.Do(t, "GET", "/v1/responses/"+id, "", asA1).StatusCode)
}

func TestATurnGoesOnFromTheOneBefore(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	id := gjson.Get(one.Do(t, "POST", "/v1/responses", askResponse, asA1).Body, "id").Str
	res := two.Do(t, "POST", "/v1/responses", `{"model":"m1","input":"and?","previous_response_id":"`+id+`"}`, asA1)
	require.Equal(t, id, gjson.Get(res.Body, "previous_response_id").Str)
	third := `{"model":"m1","input":[{"type":"function_call_output","call_id":"c","output":"1"}],` +
		`"previous_response_id":"` + gjson.Get(res.Body, "id").Str + `"}`
	require.Equal(t, 200, one.Do(t, "POST", "/v1/responses", third, asA1).StatusCode)
	body := string(one.entry.Last(t).Body)
	require.Equal(t, `["user","assistant","user","assistant"]`, gjson.Get(body, "input.#.role").Raw)
	require.Equal(t, "c", gjson.Get(body, "input.4.call_id").Str)
	require.False(t, gjson.Get(body, "previous_response_id").Exists())
	require.NotContains(t, body, `"in_resp`, "models see no ids of ours")

	for _, kind := range []string{`"type":"item_reference",`, `"type":null,`, ""} {
		ask := `{"model":"m1","input":[{` + kind + `"id":"msg_theirs"},{"role":"user","content":"so"}]}`
		require.Equal(t, 200, two.Do(t, "POST", "/v1/responses", ask, asA1).StatusCode)
		require.Equal(t, "Hello", gjson.GetBytes(one.entry.Last(t).Body, "input.0.content.0.text").Str)
	}
	require.Equal(t, 400, one.Do(t, "POST", "/v1/responses",
		`{"model":"m1","input":"x","previous_response_id":"a","conversation":"b"}`, asA1).StatusCode)
}

func TestAConversationGrowsWithEachResponse(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	begin := `{"items":[{"role":"user","content":"first"}],"metadata":{"k":"v"}}`
	made := one.Do(t, "POST", "/v1/conversations", begin, asA1)
	talk := gjson.Get(made.Body, "id").Str
	require.Equal(t, "v", gjson.Get(two.Do(t, "GET", "/v1/conversations/"+talk, "", asA1).Body, "metadata.k").Str)
	ask := `{"model":"m1","input":"next","conversation":{"id":"` + talk + `"}}`
	res := two.Do(t, "POST", "/v1/responses", ask, asA1)
	require.Equal(t, talk, gjson.Get(res.Body, "conversation.id").Str)
	require.Equal(t, "first", gjson.GetBytes(one.entry.Last(t).Body, "input.0.content").Str)

	path := "/v1/conversations/" + talk + "/items"
	list := one.Do(t, "GET", path+"?order=asc&limit=2", "", asA1).Body
	require.Equal(t, `["user","user"]`, gjson.Get(list, "data.#.role").Raw)
	require.True(t, gjson.Get(list, "has_more").Bool())
	list = one.Do(t, "GET", path+"?order=asc&after="+gjson.Get(list, "last_id").Str, "", asA1).Body
	require.Equal(t, `["msg_theirs"]`, gjson.Get(list, "data.#.id").Raw)
	require.Equal(t, 200, one.Do(t, "GET", path+"/msg_theirs", "", asA1).StatusCode)
	require.Equal(t, talk, gjson.Get(one.Do(t, "DELETE", path+"/msg_theirs", "", asA1).Body, "id").Str)
	require.Equal(t, 404, two.Do(t, "GET", path+"/msg_theirs", "", asA1).StatusCode)
	require.Equal(t, 1, len(gjson.Get(two.Do(t, "POST", path, `{"items":[{"role":"user","content":"x"}]}`, asA1).Body,
		"data").Array()))
	require.True(t, gjson.Get(one.Do(t, "DELETE", "/v1/conversations/"+talk, "", asA1).Body, "deleted").Bool())
	require.Equal(t, 404, two.Do(t, "POST", "/v1/responses", ask, asA1).StatusCode)
}

// eventsOf are the data of a stream's events.
func eventsOf(body string) (out []string) {
	for line := range strings.SplitSeq(body, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}

func inOrder(t *testing.T, list []string, first int) {
	t.Helper()
	for i, e := range list {
		require.Equal(t, int64(first+i), gjson.Get(e, "sequence_number").Int(), e)
	}
}

func TestAStreamIsKeptAsItWasSent(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	res := one.Do(t, "POST", "/v1/responses", strings.Replace(askResponse, `"x":1.50`, `"stream":true`, 1), asA1)
	list := eventsOf(res.Body)
	inOrder(t, list, 0)
	id := gjson.Get(list[0], "response.id").Str
	require.Equal(t, "resp_"+res.Header.Get("Shallot-Call"), id)
	last := list[len(list)-1]
	require.Equal(t, "response.completed", gjson.Get(last, "type").Str)
	require.Equal(t, id, gjson.Get(last, "response.id").Str)
	require.Equal(t, gjson.Get(last, "response").Raw, two.Do(t, "GET", "/v1/responses/"+id, "", asA1).Body)
	require.Equal(t, list, eventsOf(two.Do(t, "GET", "/v1/responses/"+id+"?stream=true", "", asA1).Body))
	rest := two.Do(t, "GET", "/v1/responses/"+id+"?stream=true&starting_after=3", "", asA1)
	require.Equal(t, list[4:], eventsOf(rest.Body))
}

func TestStoreFalseKeepsNothing(t *testing.T) {
	t.Parallel()
	store := &pipeline.Memory{}
	one, _ := gateways(t, saying("Hello"), store)
	for _, more := range []string{`"store":false`, `"store":false,"stream":true`} {
		res := one.Do(t, "POST", "/v1/responses", strings.Replace(askResponse, `"x":1.50`, more, 1), asA1)
		require.Equal(t, 200, res.StatusCode)
		require.Contains(t, res.Body, `"resp_theirs"`)
	}
	keys, err := store.Keys(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, keys)
	res := one.Do(t, "POST", "/v1/responses", `{"model":"m1","input":"x","store":false,"background":true}`, asA1)
	require.Equal(t, 400, res.StatusCode)
}

// full is a store that takes nothing.
type full struct{ pipeline.Memory }

func (*full) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, errors.New("no room")
}

func TestAnAnswerThatCannotBeKeptIsGivenAndSaysSo(t *testing.T) {
	t.Parallel()
	one, _ := gateways(t, saying("Hello"), &full{})
	res := one.Do(t, "POST", "/v1/responses", askResponse, asA1)
	require.Equal(t, 200, res.StatusCode)
	require.False(t, gjson.Get(res.Body, "store").Bool())
	res = one.Do(t, "POST", "/v1/responses", strings.Replace(askResponse, `"x":1.50`, `"stream":true`, 1), asA1)
	list := eventsOf(res.Body)
	require.Equal(t, "false", gjson.Get(list[len(list)-1], "response.store").Raw)
	res = one.Do(t, "POST", "/v1/responses", strings.Replace(askResponse, `"x":1.50`, `"background":true`, 1), asA1)
	require.Equal(t, 503, res.StatusCode, "what runs in the background must be found again")
}

func TestAStreamThatBreaksEndsWithAnEventThatClientsKnow(t *testing.T) {
	t.Parallel()
	cut := messages.NewFault(messages.StreamCut, "broken").From(messages.TargetOrigin)
	one, two := gateways(t, func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		err := saying("Hello")(ctx, c, emit)
		return errors.Join(err, cut)
	}, &pipeline.Memory{})
	res := one.Do(t, "POST", "/v1/responses", strings.Replace(askResponse, `"x":1.50`, `"stream":true`, 1), asA1)
	list := eventsOf(res.Body)
	inOrder(t, list, 0)
	last := list[len(list)-1]
	require.Equal(t, "response.failed", gjson.Get(last, "type").Str)
	require.Equal(t, "broken", gjson.Get(last, "response.error.message").Str)
	require.Equal(t, gjson.Get(last, "response").Raw,
		two.Do(t, "GET", "/v1/responses/"+gjson.Get(last, "response.id").Str, "", asA1).Body)
}

func TestSocketsAreRefusedAsClientsExpect(t *testing.T) {
	t.Parallel()
	one, _ := gateways(t, saying("Hello"), &pipeline.Memory{})
	res := one.Do(t, "GET", "/v1/responses", "", asA1, "Upgrade: websocket", "Connection: Upgrade")
	require.Equal(t, http.StatusUpgradeRequired, res.StatusCode)
	require.Equal(t, 405, one.Do(t, "GET", "/v1/responses", "", asA1).StatusCode)
}

// record keeps a streamed response of the first key, some of whose events are written, and ends its call with a text.
func record(t *testing.T, g *testGateway, written int, text, final string) (id string, all [][]byte) {
	t.Helper()
	ctx := t.Context()
	o := responses.Owner{Tenant: "ta", Key: "a1"}
	turn, err := g.s.Responses.Prepare(ctx, o, []byte(`{"model":"m1","input":"x","background":true,"stream":true}`))
	require.NoError(t, err)
	p, err := g.entry.Accept(ctx, pipeline.Request{Kind: messages.Model, Tenant: "ta", Body: turn.Body})
	require.NoError(t, err)
	r := turn.Record(p.ID(), time.Now().Unix())
	require.NoError(t, g.s.Responses.Begin(ctx, o, r))
	reply := func(text string) []byte { return view.Of(messages.ResponsesWire).TextReply("theirs", "m1", text, 7) }
	all = wires.Replay(messages.ResponsesWire, nil, reply(text))
	if written > 0 {
		require.NoError(t, g.s.Responses.Write(o, r).Add(ctx, all[:written]))
	}
	c := messages.NewCall(messages.Model, "ta", turn.Body)
	c.ID = p.ID()
	c.SetReply(reply(final))
	g.entry.End(c)
	return r.ID, all
}

func TestAStreamGoesOnAtAnyGatewayAfterItsOwnHasDied(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	for _, written := range []int{0, 5, 6, 7, 8} { // a stream begins with the first event that says something
		id, all := record(t, one, written, "Hello", "Hello")
		for _, g := range []*testGateway{two, one} {
			list := eventsOf(g.Do(t, "GET", "/v1/responses/"+id+"?stream=true", "", asA1).Body)
			require.Len(t, list, len(all))
			inOrder(t, list, 0)
			for i, e := range all {
				require.Equal(t, wires.Name(e), gjson.Get(list[i], "type").Str)
			}
			require.Equal(t, id, gjson.Get(list[len(list)-1], "response.id").Str)
		}
		rest := eventsOf(two.Do(t, "GET", "/v1/responses/"+id+"?stream=true&starting_after=5", "", asA1).Body)
		inOrder(t, rest, 6)
	}
}

func TestAReplyThatDoesNotGoOnFromTheEventsFailsTheStream(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	id, _ := record(t, one, 5, "Hello", "Something else")
	list := eventsOf(two.Do(t, "GET", "/v1/responses/"+id+"?stream=true", "", asA1).Body)
	inOrder(t, list, 0)
	require.Len(t, list, 6)
	require.Equal(t, "response.failed", gjson.Get(list[5], "type").Str)
	got := two.Do(t, "GET", "/v1/responses/"+id, "", asA1).Body
	require.Equal(t, gjson.Get(list[5], "response").Raw, got)
	require.Equal(t, "failed", gjson.Get(got, "status").Str)
}

func TestCancelMayComeAgainAndAfterTheEnd(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	stopped := make(chan string, 3)
	one, two := gateways(t, func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return ctx.Err()
	}, &pipeline.Memory{}, func(d *Deps) { d.Cancel = func(call string) { stopped <- call } })
	res := one.Do(t, "POST", "/v1/responses", `{"model":"m1","input":"x","background":true}`, asA1)
	require.Equal(t, "queued", gjson.Get(res.Body, "status").Str)
	id := gjson.Get(res.Body, "id").Str
	require.Equal(t, "in_progress", gjson.Get(two.Do(t, "GET", "/v1/responses/"+id, "", asA1).Body, "status").Str)
	for range 2 {
		res = two.Do(t, "POST", "/v1/responses/"+id+"/cancel", "", asA1)
		require.Equal(t, 200, res.StatusCode, res.Body)
		require.Equal(t, "cancelled", gjson.Get(res.Body, "status").Str)
	}
	require.Equal(t, "resp_"+<-stopped, id)
	require.Empty(t, stopped)

	done, _ := record(t, one, 3, "Hello", "Hello")
	res = two.Do(t, "POST", "/v1/responses/"+done+"/cancel", "", asA1)
	require.Equal(t, "completed", gjson.Get(res.Body, "status").Str)
}

func TestABackgroundStreamIsReadTwice(t *testing.T) {
	t.Parallel()
	one, two := gateways(t, saying("Hello"), &pipeline.Memory{})
	res := one.Do(t, "POST", "/v1/responses", `{"model":"m1","input":"x","background":true,"stream":true}`, asA1)
	list := eventsOf(res.Body)
	inOrder(t, list, 0)
	require.Equal(t, "response.completed", gjson.Get(list[len(list)-1], "type").Str)
	id := gjson.Get(list[0], "response.id").Str
	require.Equal(t, list, eventsOf(two.Do(t, "GET", "/v1/responses/"+id+"?stream=true", "", asA1).Body))
	_, asked := rawjson.Field(one.entry.Last(t).Body, "background")
	require.False(t, asked, "the call is what runs in the background, not the provider's")
	require.True(t, one.entry.Last(t).Keep)
}
