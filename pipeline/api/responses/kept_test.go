package responses_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

func TestATurnGetsWhatItRefersTo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := s.turn(ann, `{"model":"m1","input":"one","instructions":"mine"}`, "eins")
	second := s.turn(ann, `{"model":"m1","input":"two","previous_response_id":"`+first+`"}`, "zwei")
	for name, row := range map[string]struct {
		more string
		want []string
	}{
		"the turns before": {`"input":"so","previous_response_id":"` + second + `"`,
			[]string{"one", "eins", "two", "zwei", "so"}},
		"an item by its id":    {`"input":[{"type":"item_reference","id":"msg_of_zwei"}]`, []string{"zwei"}},
		"an item without type": {`"input":[{"id":"msg_of_eins"}]`, []string{"eins"}},
		"an item of null type": {`"input":[{"type":null,"id":"msg_of_eins"}]`, []string{"eins"}},
		"an item of the input": {`"input":[{"id":"in_` + second + `_0"}]`, []string{"two"}},
		"null is not a turn": {`"previous_response_id":null,"conversation":null,"input":[{"role":"user",` +
			`"content":[{"type":"input_text","text":"so"}]}]`, []string{"so"}},
		"no input but the past": {`"previous_response_id":"` + first + `"`, []string{"one", "eins"}},
	} {
		t.Run(name, func(t *testing.T) {
			turn, err := s.second.Prepare(t.Context(), ann, []byte(`{"model":"m1",`+row.more+`}`))
			require.NoError(t, err)
			require.Equal(t, row.want, texts(turn.Body))
			require.False(t, strings.Contains(row.more, `_response_id":"`) &&
				gjson.GetBytes(turn.Body, "previous_response_id").Exists())
			require.NotContains(t, string(turn.Body), `"in_resp`, "models see no ids of ours")
			require.NotContains(t, string(turn.Body), "mine", "instructions are those of this turn")
		})
	}
	body := `{ "model":"m1", "input":[{"role":"user","content":"x"}], "y":1.50 }`
	turn, err := s.Prepare(t.Context(), ann, []byte(body))
	require.NoError(t, err)
	require.Equal(t, body, string(turn.Body), "what refers to nothing keeps its bytes")
}

func TestWhatIsAnothersIsNotThere(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.turn(ann, `{"model":"m1","input":"one"}`, "eins")
	talk, err := s.CreateConversation(t.Context(), ann, []byte(`{"items":[{"role":"user","content":"x"}]}`))
	require.NoError(t, err)
	running := s.begun(ann, `,"stream":true`)
	for _, who := range []responses.Owner{other, bob, {Tenant: "tb", Key: "a2"}, {}} {
		for _, name := range []string{id, running.ID, "resp_x", "", strings.Repeat("x", 1000), "a\nb"} {
			_, err := s.Look(t.Context(), who, name)
			isFault(t, err, messages.NotFound, "")
			isFault(t, s.Delete(t.Context(), who, name), messages.NotFound, "")
			_, err = s.Cancel(t.Context(), who, name, func(string) { t.Error("it was stopped") })
			isFault(t, err, messages.NotFound, "")
		}
		_, _, err := s.Events(t.Context(), who, id, 0)
		require.Error(t, err)
		_, err = s.Conversation(t.Context(), who, talk.ID)
		isFault(t, err, messages.NotFound, "")
		_, err = s.AddItems(t.Context(), who, talk.ID, []byte(`{"items":[]}`))
		isFault(t, err, messages.NotFound, "")
		_, err = s.UpdateConversation(t.Context(), who, talk.ID, []byte(`{}`))
		isFault(t, err, messages.NotFound, "")
		_, err = s.DeleteItem(t.Context(), who, talk.ID, "in_"+talk.ID+"_0")
		isFault(t, err, messages.NotFound, "")
		isFault(t, s.DeleteConversation(t.Context(), who, talk.ID), messages.NotFound, "")
		for more, param := range map[string]string{
			`"previous_response_id":"` + id + `"`:                        "previous_response_id",
			`"conversation":"` + talk.ID + `"`:                           "conversation",
			`"input":[{"id":"msg_of_eins"}]`:                             "input[0].id",
			`"input":[{"type":"item_reference","id":"in_` + id + `_0"}]`: "input[0].id",
			`"input":[{"id":"in_` + talk.ID + `_0"}]`:                    "input[0].id",
		} {
			_, err := s.Prepare(t.Context(), who, []byte(`{"model":"m1",`+more+`}`))
			isFault(t, err, messages.NotFound, param)
		}
	}
	r, err := s.Look(t.Context(), ann, id)
	require.NoError(t, err)
	require.True(t, r.Done())
}

func TestRequestsThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	running := s.begun(ann, "")
	in := s.turn(ann, `{"model":"m1","input":"x"}`, "y")
	for more, param := range map[string]string{
		`"store":1`:                                   "store",
		`"background":"yes"`:                          "background",
		`"stream":[]`:                                 "stream",
		`"previous_response_id":7`:                    "previous_response_id",
		`"previous_response_id":""`:                   "previous_response_id",
		`"conversation":{}`:                           "conversation",
		`"store":false,"background":true`:             "background",
		`"previous_response_id":"` + running.ID + `"`: "previous_response_id",
		`"previous_response_id":"` + in + `","conversation":"conv_x"`: "previous_response_id",
	} {
		_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x",`+more+`}`))
		isFault(t, err, messages.InvalidRequest, param)
	}
}

// A document above the size of a message lies in parts, which go with it.
func TestLargeResponsesAreKeptInParts(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	body := noise(1 << 20)
	id := s.turn(ann, `{"model":"m1","input":"`+body+`"}`, "y")
	require.GreaterOrEqual(t, len(s.keys()), 5, "its place, its events, two parts and their head")
	r, err := s.second.Look(t.Context(), ann, id)
	require.NoError(t, err)
	require.Equal(t, body, gjson.GetBytes(r.Input[0], "content.0.text").Str)
	require.NoError(t, s.Delete(t.Context(), ann, id))
	for _, key := range s.keys() {
		require.NotContains(t, key, ".part.")
		require.NotContains(t, key, ".events.")
		require.NotContains(t, key, ".response.")
	}
}

func TestManyWritersGrowOneConversation(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	c, err := s.CreateConversation(t.Context(), ann, []byte(`{"metadata":{"a":"b"}}`))
	require.NoError(t, err)
	const writers, each = 8, 5
	var wait sync.WaitGroup
	for w := range writers {
		k := []*responses.Kept{s.Kept, s.second}[w%2]
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf(`{"items":[{"role":"user","content":"%d-%d"}]}`, w, i)
				_, err := k.AddItems(t.Context(), ann, c.ID, []byte(body))
				require.NoError(t, err)
			}
		})
	}
	wait.Wait()
	c, err = s.Conversation(t.Context(), ann, c.ID)
	require.NoError(t, err)
	ids := map[string]bool{}
	for _, item := range c.Items() {
		ids[gjson.GetBytes(item, "id").Str] = true
	}
	require.Len(t, ids, writers*each, "each item is there, with an id of its own")

	added := s.turn(ann, `{"model":"m1","input":"in talk","conversation":"`+c.ID+`"}`, "there")
	r, _, err := s.Load(t.Context(), ann, added)
	require.NoError(t, err)
	require.NoError(t, s.second.Save(t.Context(), ann, r, nil))
	c, err = s.Conversation(t.Context(), ann, c.ID)
	require.NoError(t, err)
	require.Len(t, c.Items(), writers*each+2, "a response is added once")
	_, err = s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x","previous_response_id":"`+added+`"}`))
	isFault(t, err, messages.InvalidRequest, "previous_response_id")
	big := `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"x"},`, 21), ",") + `]}`
	for _, body := range []string{big, `{"items":1}`, `{"items":[1]}`, `{}`} {
		_, err = s.AddItems(t.Context(), ann, c.ID, []byte(body))
		isFault(t, err, messages.InvalidRequest, "items")
	}
	_, err = s.UpdateConversation(t.Context(), ann, c.ID, []byte(`{"metadata":[]}`))
	isFault(t, err, messages.InvalidRequest, "metadata")
}

// Whoever looks first keeps the end; all others, in any process and at once, return the same.
func TestTheEndOfAResponseIsKeptOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, more := range []string{"", `,"stream":true`} {
		r := s.begun(ann, more)
		if more != "" {
			all := events.Replay(messages.ResponsesWire, nil, reply("done"))
			require.NoError(t, s.Write(ann, r).Add(t.Context(), all[:6]))
		}
		s.calls.end(ann, r.Call, reply("done"), nil)
		var wait sync.WaitGroup
		got := make([]string, 12)
		for i := range got {
			k := []*responses.Kept{s.Kept, s.second}[i%2]
			wait.Go(func() {
				now, err := k.Look(t.Context(), ann, r.ID)
				require.NoError(t, err)
				got[i] = string(now.Response)
			})
		}
		wait.Wait()
		for _, one := range got {
			require.Equal(t, got[0], one)
		}
		require.Equal(t, r.ID, gjson.Get(got[0], "id").Str)
		require.Equal(t, "done", gjson.Get(got[0], "output.0.content.0.text").Str)
		if more != "" {
			for i, e := range s.all(s.second, ann, r.ID) {
				require.Equal(t, i, responses.Number(e))
			}
		}
		stopped, err := s.Cancel(t.Context(), ann, r.ID, func(string) { t.Error("it has ended") })
		require.NoError(t, err)
		require.Equal(t, got[0], string(stopped.Response))
	}
}

func TestHowACallEndsIsHowItsResponseDoes(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for code, want := range map[messages.Code]string{
		messages.ProviderLimited: "rate_limit_exceeded", messages.InvalidRequest: "invalid_prompt",
		messages.ProviderError: "server_error",
	} {
		for _, more := range []string{"", `,"stream":true`} {
			r := s.begun(ann, more)
			s.calls.end(ann, r.Call, nil, messages.NewFault(code, "why"))
			now, err := s.Look(t.Context(), ann, r.ID)
			require.NoError(t, err)
			require.Equal(t, "failed", gjson.GetBytes(now.Response, "status").Str)
			require.Equal(t, want, gjson.GetBytes(now.Response, "error.code").Str)
			require.Equal(t, "why", gjson.GetBytes(now.Response, "error.message").Str)
			if more != "" {
				all := s.all(s.Kept, ann, r.ID)
				require.Equal(t, "response.created", events.Name(all[0]))
				require.Equal(t, "response.failed", events.Name(all[len(all)-1]))
			}
		}
	}
	r := s.begun(ann, "")
	s.calls.end(ann, r.Call, []byte(`{"no":"output"}`), nil)
	now, err := s.Look(t.Context(), ann, r.ID)
	require.NoError(t, err)
	require.Equal(t, "failed", gjson.GetBytes(now.Response, "status").Str)
}

// Nobody asks for a response whose gateway has died: its end is kept all the same, while the end of its call is known.
func TestASweepKeepsEndsThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		before := len(s.keys())
		runs, failed, ended := s.begun(ann, ""), s.begun(bob, `,"stream":true`), s.begun(ann, `,"stream":true`)
		gone := s.begun(other, "")
		require.NoError(t, s.store.Delete(t.Context(), recordKey(other, gone.ID)))
		s.calls.end(ann, ended.Call, reply("done"), nil)
		s.calls.end(bob, failed.Call, nil, messages.NewFault(messages.ProviderError, "why"))
		n, err := s.second.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, n)
		s.calls.ends = map[string]*messages.Call{} // nobody knows them any more
		for _, row := range []struct {
			o    responses.Owner
			id   string
			want string
		}{{ann, ended.ID, "completed"}, {bob, failed.ID, "failed"}, {ann, runs.ID, "in_progress"}} {
			r, err := s.Look(t.Context(), row.o, row.id)
			require.NoError(t, err)
			require.Equal(t, row.want, gjson.GetBytes(r.Now(), "status").Str)
		}
		<-time.After(2 * time.Minute)
		n, err = s.Sweep(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		notes, err := s.store.Keys(t.Context(), messages.Key("", "open"))
		require.NoError(t, err)
		require.Equal(t, []string{messages.Key("", "open", runs.ID)}, notes, "only what runs is open")
		s.calls.fails(runs.Call, messages.NewFault(messages.NotFound, "no call"))
		<-time.After(25 * time.Hour)
		n, err = s.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n, "a call that nobody has known for a day does not come any more")
		for _, r := range []*responses.Record{runs, ended} {
			require.NoError(t, s.Delete(t.Context(), ann, r.ID))
		}
		require.NoError(t, s.Delete(t.Context(), bob, failed.ID))
		left := s.keys()
		require.Len(t, left, before+1, "an item's place, which leads nowhere: %v", left)
	})
}

func recordKey(o responses.Owner, id string) string {
	return messages.Key(o.Tenant, "key "+o.Key, "response", id)
}

// A call that waits for a person ends its response with what it waits for, and goes on in the next.
func TestAResponseAsksAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	for _, streamed := range []bool{false, true} {
		s := newShop(t)
		more := ""
		if streamed {
			more = `,"stream":true`
		}
		r := s.begun(ann, more)
		if streamed {
			shown := events.Replay(messages.ResponsesWire, nil, reply("so far"))
			require.NoError(t, s.Write(ann, r).Add(t.Context(), shown[:6]))
		}
		waits := map[string]api.Approval{r.Call: {Call: r.Call, Tenant: "ta", Kind: messages.Agent,
			Question: []byte(`{"run":"x","step":3,"decided":{"c":{}},"calls":[` +
				`{"id":"a","tool":"pay","arguments":{"n":1},"question":{}},{"id":"b","tool":"look","auto_approved":true},` +
				`{"id":"c","tool":"pay","question":{}},{"id":"d","tool":"send","arguments":{},"question":{}}]}`)}}
		s.Kept.Asks, s.second.Asks = desk{waits}, desk{waits}
		s.calls.fails(r.Call, held)
		now, err := s.Look(t.Context(), ann, r.ID)
		require.NoError(t, err)
		require.True(t, now.Done())
		require.Equal(t, "completed", gjson.GetBytes(now.Response, "status").Str)
		items := gjson.GetBytes(now.Response, `output.#(type=="mcp_approval_request")#`).Array()
		require.Len(t, items, 2)
		require.Equal(t, []string{"pay", `{"n":1}`, "shallot"}, []string{items[0].Get("name").Str,
			items[0].Get("arguments").Str, items[0].Get("server_label").Str})
		if streamed {
			require.Equal(t, "so far", gjson.GetBytes(now.Response, "output.0.content.0.text").Str)
			for i, e := range s.all(s.second, ann, r.ID) {
				require.Equal(t, i, responses.Number(e))
			}
		}
		ask := func(approve string, ids ...int) []byte {
			var in []string
			for _, i := range ids {
				in = append(in, `{"type":"mcp_approval_response","approval_request_id":"`+items[i].Get("id").Str+
					`","approve":`+approve+`,"reason":"r"}`)
			}
			return []byte(`{"model":"m1","previous_response_id":"` + r.ID + `","input":[` + strings.Join(in, ",") + `]}`)
		}
		_, err = s.Prepare(t.Context(), bob, ask("true", 0))
		isFault(t, err, messages.NotFound, "previous_response_id")
		_, err = s.Prepare(t.Context(), ann, ask(`"yes"`, 0))
		isFault(t, err, messages.InvalidRequest, "input")
		turn, err := s.second.Prepare(t.Context(), ann, ask("false", 0, 1))
		require.NoError(t, err)
		require.Len(t, turn.Answers, 2)
		d, stale := turn.Answers[1].Decision(waits[r.Call])
		require.False(t, stale)
		require.JSONEq(t, `{"id":"d","decision":"reject","reason":"r"}`, string(d))

		next := turn.Continues(time.Now().Unix())
		require.NotEqual(t, r.ID, next.ID)
		require.NoError(t, s.Begin(t.Context(), ann, next))
		now, err = s.Look(t.Context(), ann, next.ID)
		require.NoError(t, err)
		require.False(t, now.Done(), "what it has answered is not asked again while the call goes on")
		delete(waits, r.Call)
		_, stale = turn.Answers[0].Decision(api.Approval{Call: r.Call, Kind: messages.Agent})
		require.True(t, stale)
		s.calls.end(ann, r.Call, reply("paid"), nil)
		now, err = s.second.Look(t.Context(), ann, next.ID)
		require.NoError(t, err)
		require.Equal(t, next.ID, gjson.GetBytes(now.Response, "id").Str)
		require.Equal(t, r.ID, gjson.GetBytes(now.Response, "previous_response_id").Str)
		require.Equal(t, "paid", gjson.GetBytes(now.Response, "output.0.content.0.text").Str)
	}
}

// Questions that were not asked here are the provider's.
func TestAnswersToOthersGoToTheProvider(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, id := range []string{"mcpr_68af", "mcpr_" + messages.NewID(), "x"} {
		turn, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":[{"type":"mcp_approval_response",`+
			`"approval_request_id":"`+id+`","approve":true}]}`))
		require.NoError(t, err)
		require.Empty(t, turn.Answers)
		require.Contains(t, string(turn.Body), id)
	}
	mine := "mcpr_" + messages.NewID() + "_1_0"
	_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":[{"type":"mcp_approval_response",`+
		`"approval_request_id":"`+mine+`","approve":true}]}`))
	isFault(t, err, messages.NotFound, "input")
}

// A provider that makes up an item cannot make a question about another call of it.
func TestAQuestionIsAboutTheCallOfItsResponse(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	theirs := "mcpr_" + s.begun(other, "").Call + "_0_0"
	turn, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x"}`))
	require.NoError(t, err)
	r := turn.Record(messages.NewID(), time.Now().Unix())
	forged := strings.Replace(string(reply("x")), "msg_of_x", theirs, 1)
	r.Response = r.Shape([]byte(strings.Replace(forged, `"type":"message"`, `"type":"mcp_approval_request"`, 1)), true)
	require.NoError(t, s.Save(t.Context(), ann, r, nil))
	_, err = s.Item(t.Context(), ann, theirs)
	require.NoError(t, err, "the item is there")
	_, err = s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":[{"type":"mcp_approval_response",`+
		`"approval_request_id":"`+theirs+`","approve":true}]}`))
	isFault(t, err, messages.NotFound, "input")
}
