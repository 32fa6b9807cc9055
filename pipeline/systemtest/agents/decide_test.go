package agents

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// ask sends a message over NATS and returns the answer with the number of its fault, if it is one.
func (i *installation) ask(subject, body string) (answer, fault string) {
	i.t.Helper()
	m, err := i.nc.Request("shallot.v1."+subject, []byte(body), time.Minute)
	require.NoError(i.t, err)
	return string(m.Data), m.Header.Get("Nats-Service-Error-Code")
}

// A batch is decided over NATS, one call after the other and in every way there is. What is edited is held to the
// tool's schema and to its policies again, and the model reads one result for each call, in its order.
func TestABatchIsDecidedOverNATSInEveryWay(t *testing.T) {
	t.Parallel()
	read := &list{} // what the model reads of its calls
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() != "tool" {
			return []map[string]any{call("a", "pay", `{"amount":11}`), call("b", "pay", `{"amount":12}`),
				call("c", "pay", `{"amount":13}`), call("d", "pay", `{"amount":14}`), call("e", "look", `{}`)}, ""
		}
		for _, m := range chat.Messages(request) {
			if m.Role() == "tool" {
				read.add(m.Text())
			}
		}
		return nil, "done"
	})
	status, body := i.do("POST", "/v1/agents/clerk/runs", `{"input":"go"}`)
	require.Equal(t, 202, status, body)
	run := gjson.Get(body, "id").String()
	waiting, _ := i.ask("approval.list", "")
	require.Equal(t, run, gjson.Get(waiting, "0.call").String(), waiting)
	decide := func(decisions string) (string, string) {
		raw, err := json.Marshal(map[string]json.RawMessage{"call": json.RawMessage(`"` + run + `"`),
			"answer": json.RawMessage(decisions)})
		require.NoError(t, err)
		return i.ask("approval.answer", string(raw))
	}
	said, fault := decide(`{"decisions":{"a":{"decision":"approve"},"nobody":{"decision":"approve"}}}`)
	require.Empty(t, fault, said)
	require.Equal(t, "approval_pending", gjson.Get(said, "status").String(), said)
	_, fault = decide(`{"id":"a","decision":"reject"}`)
	require.Equal(t, "409", fault)
	said, fault = decide(`{"id":"b","decision":"edit","arguments":{"amount":"many"}}`)
	require.Equal(t, "422", fault, said)
	require.Contains(t, said, "amount")
	_, fault = decide(`{"decision":"approve"}`)
	require.Equal(t, "400", fault, "three calls wait: which one is meant?")
	_, fault = decide(`[{"id":"b","decision":"approve"}]`)
	require.Equal(t, "400", fault)
	said, fault = decide(`{"decisions":[{"id":"b","decision":"edit","arguments":{"amount":2}},
		{"id":"c","decision":"respond","content":"pay it yourself"}]}`)
	require.Empty(t, fault, said)
	require.Empty(t, ran.all(), "none runs before all are decided")
	said, fault = decide(`{"decision":"reject","reason":"too much"}`)
	require.Empty(t, fault, said)
	require.Equal(t, "decided", gjson.Get(said, "status").String(), said)
	require.Eventually(t, func() bool {
		_, body = i.do("GET", "/v1/agents/clerk/runs/"+run, "")
		return gjson.Get(body, "status").String() == api.RunCompleted
	}, 30*time.Second, 20*time.Millisecond)
	require.ElementsMatch(t, []string{`pay{"amount":11}`, `pay{"amount":2}`, "look{}"}, ran.all())
	results := read.all()
	require.Len(t, results, 5)
	require.Equal(t, "pay is done", results[0])
	require.Equal(t, "pay is done", results[1])
	require.Equal(t, "pay it yourself", results[2])
	require.Contains(t, results[3], "too much")
	require.Equal(t, "look is done", results[4])
	_, body = i.do("GET", "/v1/agents/clerk/runs/"+run+"/messages", "")
	require.JSONEq(t, `{"amount":2}`, gjson.Get(body, "data.1.tool_calls.1.function.arguments").String(),
		"the model reads what was called")
}

// Whoever decides after everything was stopped and started again, by whatever face and how many at once: one of them
// counts, the tool runs once, and the others are told who has decided and when.
func TestAnApprovalOutlivesEverythingAndIsGivenOnceOverAllFaces(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "paid"
		}
		return []map[string]any{call("a", "pay", `{"amount":50}`)}, ""
	})
	byHand := func() *mcp.ClientSession {
		o := (&apitest.Person{}).Options()
		o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
		s := apitest.DialMCP(t, i.url, "", "2026-07-28", o)
		offered(t, s)
		return s
	}
	asked := apitest.CallTool(t, byHand(), run("clerk", "go"))
	require.True(t, asked.NeedsInput())
	id, _ := asked.Meta["shallot/call"].(string)
	i.restart()

	again := run("clerk", "go")
	again.RequestState, again.InputResponses = asked.RequestState, mcp.InputResponseMap{}
	for name := range asked.InputRequests {
		again.InputResponses[name] = apitest.Filled(map[string]any{"decision": "approve", "call": "a"})
	}
	require.NotEmpty(t, again.InputResponses)
	session := byHand()
	var won, lost atomic.Int32
	told := func(code, body string) {
		switch {
		case code == "200" || code == "":
			won.Add(1)
		case code == "409" && conflict.MatchString(body):
			lost.Add(1)
		default:
			t.Errorf("%s: %s", code, body)
		}
	}
	var all sync.WaitGroup
	for n := range 105 {
		all.Go(func() {
			switch {
			case n%21 == 20: // who comes second gets the result
				mine := *again // the client writes into it
				r, err := session.CallTool(t.Context(), &mine)
				if err != nil || r.IsError || apitest.TextOf(t, r) != "paid" {
					t.Error(err, r)
				}
			case n%2 == 0:
				status, body := i.do("POST", "/v1/approvals/"+id, `{"decision":"approve"}`)
				told(strconv.Itoa(status), body)
			default:
				answer, fault := i.ask("approval.answer", `{"call":"`+id+`","decision":"approve"}`)
				told(fault, answer)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 100, won.Load()+lost.Load())
	require.LessOrEqual(t, won.Load(), int32(1), "none where a person at an MCP client was the first")
	_, body := i.do("GET", "/v1/agents/clerk/runs/"+id, "")
	require.Equal(t, "paid", gjson.Get(body, "output").String(), body)
	require.Equal(t, []string{`pay{"amount":50}`}, ran.all())
}

// conflict is what those are told who decide too late.
var conflict = regexp.MustCompile(`decided already, by \S+ at 20\d\d-\d\d-\d\dT`)

// A run that waits is cancelled like any other: nothing of the batch runs, and nobody can decide about it any more.
func TestAWaitingRunIsCancelled(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func([]byte) ([]map[string]any, string) {
		return []map[string]any{call("a", "pay", `{"amount":11}`), call("b", "look", `{}`)}, ""
	})
	status, body := i.do("POST", "/v1/agents/clerk/runs", `{"input":"go"}`)
	require.Equal(t, 202, status, body)
	path, run := gjson.Get(body, "location").String(), gjson.Get(body, "id").String()
	status, body = i.do("POST", path+"/cancel", "")
	require.Equal(t, 202, status, body)
	_, body = i.do("GET", path+"/events", "") // to its end
	end := body[strings.LastIndex(body, "data: ")+6:]
	require.Equal(t, api.RunCancelled, gjson.Get(end, "reason").String(), body)
	require.Equal(t, "cancelled", gjson.Get(end, "error.code").String(), body)
	_, body = i.do("GET", path, "")
	require.Equal(t, api.RunCancelled, gjson.Get(body, "status").String(), body)
	status, body = i.do("POST", "/v1/approvals/"+run, `{"decision":"approve"}`)
	require.Equal(t, 409, status, body)
	require.Contains(t, body, "the caller")
	require.Empty(t, ran.all())
}
