package agents

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// datas are the data of a stream's events.
func datas(body string) (out []string) {
	for line := range strings.SplitSeq(body, "\n") {
		if d, ok := strings.CutPrefix(line, "data: "); ok && d != "[DONE]" {
			out = append(out, d)
		}
	}
	return out
}

// Clients of every API run an agent by its model.
func TestAnAgentAnswersOnEveryWire(t *testing.T) {
	t.Parallel()
	i, _ := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "I have looked, and " + last(request).Text()
		}
		return []map[string]any{call("a", "look", `{}`)}, ""
	})
	const want = "I have looked, and look is done"
	for _, row := range []struct{ path, body, text, usage, delta string }{
		{"/v1/chat/completions", `{"model":"agent/clerk","messages":[{"role":"user","content":"go"}]}`,
			"choices.0.message.content", "usage.total_tokens", "choices.0.delta.content"},
		{"/v1/responses", `{"model":"agent/clerk","input":"go","tools":[]}`,
			"output.0.content.0.text", "usage.total_tokens", "delta"},
		{"/v1/messages", `{"model":"agent/clerk","max_tokens":99,"messages":[{"role":"user","content":"go"}]}`,
			"content.0.text", "usage.input_tokens", "delta.text"},
	} {
		status, body := i.do("POST", row.path, row.body)
		require.Equal(t, 200, status, body)
		require.Equal(t, want, gjson.Get(body, row.text).Str, body)
		require.Positive(t, gjson.Get(body, row.usage).Int(), body)
		_, body = i.do("POST", row.path, strings.Replace(row.body, "{", `{"stream":true,`, 1))
		said := ""
		for _, d := range datas(body) {
			said += gjson.Get(d, row.delta).Str
		}
		require.Equal(t, want, said, body)
	}
	status, first := i.do("POST", "/v1/responses", `{"model":"agent/clerk","input":"go"}`)
	require.Equal(t, 200, status, first)
	status, body := i.do("POST", "/v1/responses", `{"model":"agent/clerk","input":"again","previous_response_id":"`+
		gjson.Get(first, "id").Str+`"}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, want, gjson.Get(body, "output.0.content.0.text").Str, "it was given the turn before")
}

// A run that waits for a person asks its client with items that clients know, and goes on when they are answered.
func TestARunAsksAClientOfTheResponsesAPI(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		more    string
		approve string
		want    string
	}{
		"approved":                   {``, "true", "paid"},
		"rejected":                   {``, "false", "not paid"},
		"streamed":                   {`"stream":true,`, "true", "paid"},
		"in the background":          {`"background":true,`, "true", "paid"},
		"streamed in the background": {`"background":true,"stream":true,`, "true", "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
				switch {
				case last(request).Role() == "tool" && strings.Contains(last(request).Text(), "done"):
					return nil, "paid"
				case last(request).Role() == "tool":
					return nil, "not paid"
				}
				return []map[string]any{call("a", "pay", `{"amount":50}`)}, ""
			})
			ended := func(body string) string {
				if strings.Contains(row.more, "stream") {
					all := datas(body)
					require.NotEmpty(t, all, body)
					for n, d := range all {
						require.EqualValues(t, n, gjson.Get(d, "sequence_number").Int(), body)
					}
					return gjson.Get(all[len(all)-1], "response").Raw
				}
				for gjson.Get(body, "status").Str == "queued" || gjson.Get(body, "status").Str == "in_progress" {
					_, body = i.do("GET", "/v1/responses/"+gjson.Get(body, "id").Str, "")
				}
				return body
			}
			status, body := i.do("POST", "/v1/responses", `{`+row.more+`"model":"agent/clerk","input":"go"}`)
			require.Equal(t, 200, status, body)
			asks := ended(body)
			require.Equal(t, "completed", gjson.Get(asks, "status").Str, body)
			ask := gjson.Get(asks, `output.#(type=="mcp_approval_request")`)
			require.Equal(t, []string{"pay", "shallot"}, []string{ask.Get("name").Str, ask.Get("server_label").Str}, body)
			require.JSONEq(t, `{"amount":50}`, ask.Get("arguments").Str)
			require.Empty(t, ran.all(), "nothing runs before the answer")

			answer := `{` + row.more + `"model":"agent/clerk","previous_response_id":"` + gjson.Get(asks, "id").Str +
				`","input":[{"type":"mcp_approval_response","approval_request_id":"` + ask.Get("id").Str +
				`","approve":` + row.approve + `}]}`
			status, body = i.do("POST", "/v1/responses", answer)
			require.Equal(t, 200, status, body)
			end := ended(body)
			require.Equal(t, row.want, gjson.Get(end, "output.0.content.0.text").Str, body)
			require.NotEqual(t, gjson.Get(asks, "id").Str, gjson.Get(end, "id").Str)
			require.Equal(t, row.approve == "true", len(ran.all()) == 1)
			status, body = i.do("POST", "/v1/responses", answer)
			require.Equal(t, 200, status, body)
			require.Equal(t, row.want, gjson.Get(ended(body), "output.0.content.0.text").Str, "sent again it decides nothing")
			require.Equal(t, row.approve == "true", len(ran.all()) == 1)
		})
	}
}

// A batch may be answered one by one, and a run may ask again; what the client has not answered is asked in each
// response.
func TestARunAsksAsOftenAsItMust(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		switch strings.Count(string(request), `"role":"tool"`) {
		case 0:
			return []map[string]any{call("a", "pay", `{"amount":50}`), call("b", "pay", `{"amount":60}`)}, ""
		case 2:
			return []map[string]any{call("c", "pay", `{"amount":70}`)}, ""
		}
		return nil, "all paid"
	})
	status, body := i.do("POST", "/v1/responses", `{"model":"agent/clerk","input":"go"}`)
	require.Equal(t, 200, status, body)
	first := gjson.Get(body, "output.0.id").Str
	for _, asked := range [][]string{{"50", "60"}, {"60"}, {"70"}} {
		asks := gjson.Get(body, "output").Array()
		require.Len(t, asks, len(asked), body)
		for n, ask := range asks {
			require.Equal(t, "mcp_approval_request", ask.Get("type").Str)
			require.Equal(t, asked[n], gjson.Get(ask.Get("arguments").Str, "amount").Raw)
		}
		status, body = i.do("POST", "/v1/responses", `{"model":"agent/clerk","previous_response_id":"`+
			gjson.Get(body, "id").Str+`","input":[{"type":"mcp_approval_response","approve":true,"approval_request_id":"`+
			asks[0].Get("id").Str+`"}]}`)
		require.Equal(t, 200, status, body)
	}
	require.Equal(t, "all paid", gjson.Get(body, "output.0.content.0.text").Str, body)
	require.Len(t, ran.all(), 3)
	last := gjson.Get(body, "id").Str
	_, items := i.do("GET", "/v1/responses/"+last+"/input_items", "")
	require.Equal(t, "mcp_approval_response", gjson.Get(items, "data.0.type").Str)
	status, body = i.do("POST", "/v1/responses", `{"model":"agent/clerk","previous_response_id":"`+last+
		`","input":[{"type":"mcp_approval_response","approve":true,"approval_request_id":"`+first+`"},`+
		`{"type":"mcp_approval_response","approve":true,`+
		`"approval_request_id":"mcpr_01a20355-f539-7165-8f6b-dcef3ed00ee2_1_0"}]}`)
	require.Equal(t, 404, status, body)
}
