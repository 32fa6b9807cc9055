package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	wires "github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

const (
	askClaude = `{"model":"m1","max_tokens":9,"x":1.50,"messages":[{"role":"user","content":"hi"}]}`
	ofClaude  = `{"id":"msg_1","type":"message","role":"assistant","model":"m1","content":[{"type":"thinking",` +
		`"thinking":"hm","signature":"U0lH"},{"type":"text","text":"Hello"}],"stop_reason":"end_turn",` +
		`"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":4}}`
)

// claude answers on the messages wire, as a stream if that is asked.
func claude(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
	if c.Stream {
		for _, e := range wires.Replay(messages.MessagesWire, nil, []byte(ofClaude)) {
			if wires.Ends(e) {
				continue
			}
			if err := emit(e); err != nil {
				return err
			}
		}
	}
	c.SetReply([]byte(ofClaude))
	return nil
}

func TestMessagesFace(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{Target: claude}
	g := start(t, entry, nil)
	res := g.Do(t, "POST", "/v1/messages?beta=true", askClaude, "Anthropic-Version: 2023-06-01",
		"Anthropic-Beta: context-1m,other", "X-Claude-Code-Session-Id: s9")
	require.Equal(t, 200, res.StatusCode, res.Body)
	require.Equal(t, ofClaude, res.Body)
	seen := entry.Last(t)
	require.Equal(t, messages.MessagesWire, seen.Wire)
	require.Equal(t, askClaude, string(seen.Body))
	require.Empty(t, seen.Session, "a session of the client turns no stage on")
	require.JSONEq(t, `{"anthropic-version":"2023-06-01","anthropic-beta":"context-1m,other"}`,
		string(seen.Notes[messages.NoteWireHeaders]))
	require.Equal(t, `"s9"`, string(seen.Notes[messages.NoteSessionLabel]))
}

func TestMessagesFaceStreams(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{Target: claude}, nil)
	res := g.Do(t, "POST", "/v1/messages", strings.Replace(askClaude, `"x":1.50`, `"stream":true`, 1))
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	var want strings.Builder
	for _, e := range wires.Replay(messages.MessagesWire, nil, []byte(ofClaude)) {
		fmt.Fprintf(&want, "event: %s\ndata: %s\n\n", wires.Name(e), e)
	}
	require.Equal(t, want.String(), res.Body)
}

func TestMessagesFaceErrors(t *testing.T) {
	t.Parallel()
	limited := messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin)
	raw := `{"type":"error","error":{"type":"invalid_request_error","message":"thinking is not supported"}}`
	rejected := messages.NewFault(messages.ProviderRejected, "thinking is not supported").From(messages.TargetOrigin)
	rejected.Status = 400
	for name, tc := range map[string]struct {
		body   string
		target pipeline.TargetFunc
		status int
		kind   string
	}{
		"not JSON":      {"{", claude, 400, "invalid_request_error"},
		"no model":      {`{"messages":[{"role":"user","content":"x"}]}`, claude, 400, "invalid_request_error"},
		"no messages":   {`{"model":"m1"}`, claude, 400, "invalid_request_error"},
		"rate limit":    {askClaude, apitest.Faults(limited), 429, "rate_limit_error"},
		"the own words": {askClaude, refusing(rejected, raw), 400, "invalid_request_error"},
	} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", name, streamed), func(t *testing.T) {
				t.Parallel()
				g := start(t, &apitest.Entry{Target: tc.target}, nil)
				body := tc.body
				if streamed {
					body = strings.Replace(body, `"x":1.50`, `"stream":true`, 1)
				}
				res := g.Do(t, "POST", "/v1/messages", body)
				require.Equal(t, tc.status, res.StatusCode, res.Body)
				require.Equal(t, "error", gjson.Get(res.Body, "type").String())
				require.Equal(t, tc.kind, gjson.Get(res.Body, "error.type").String())
				if name == "the own words" {
					require.Equal(t, raw, res.Body)
					return
				}
				require.Equal(t, res.Header.Get("Request-Id"), gjson.Get(res.Body, "request_id").String())
			})
		}
	}
}

// refusing is a target whose provider refused in its own words.
func refusing(f *messages.Fault, raw string) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.Notes = messages.Notes{messages.NoteUpstreamError: []byte(raw)}
		return f
	}
}

// A stream that is cut ends with an error event, and never as a whole one does.
func TestMessagesFaceCut(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{Target: func(_ context.Context, _ *messages.Call, emit pipeline.Emit) error {
		for _, e := range wires.Replay(messages.MessagesWire, nil, []byte(ofClaude))[:3] {
			if err := emit(e); err != nil {
				return err
			}
		}
		return messages.NewFault(messages.StreamCut, "the stream broke").From(messages.TargetOrigin)
	}}, nil)
	res := g.Do(t, "POST", "/v1/messages", strings.Replace(askClaude, `"x":1.50`, `"stream":true`, 1))
	require.NotContains(t, res.Body, "message_stop")
	require.NotContains(t, res.Body, "[DONE]")
	last := res.Body[strings.LastIndex(res.Body, "event: "):]
	require.True(t, strings.HasPrefix(last, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"), last)
}

func TestMessagesFaceKeys(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{Target: claude}, func(_ *Config, d *Deps) { d.Keys = twoTenants(t) })
	res := g.Do(t, "POST", "/v1/messages", askClaude)
	require.Equal(t, 401, res.StatusCode)
	require.Equal(t, "authentication_error", gjson.Get(res.Body, "error.type").String())
	const key = "key-a"
	for _, headers := range [][]string{{"X-Api-Key: " + key}, {"Authorization: Bearer " + key},
		{"Authorization: Bearer nobody", "X-Api-Key: " + key}} {
		require.Equal(t, 200, g.Do(t, "POST", "/v1/messages", askClaude, headers...).StatusCode, headers)
	}
	require.Equal(t, 401, g.Do(t, "POST", "/v1/messages", askClaude, "X-Api-Key: nobody").StatusCode)
}

func TestCountTokens(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{Target: claude}
	g := start(t, entry, nil)
	count := func(text string) int64 {
		res := g.Do(t, "POST", "/v1/messages/count_tokens?beta=true",
			strings.Replace(askClaude, `"hi"`, fmt.Sprintf("%q", text), 1))
		require.Equal(t, 200, res.StatusCode, res.Body)
		return gjson.Get(res.Body, "input_tokens").Int()
	}
	require.Greater(t, count("hi"), int64(0))
	require.Greater(t, count(strings.Repeat("word ", 100)), count("hi")+100)
	require.Empty(t, entry.Seen, "nothing leaves the gateway")
	require.Equal(t, 400, g.Do(t, "POST", "/v1/messages/count_tokens", `{"model":"m1"}`).StatusCode)
}

func TestModelsInBothShapes(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, nil)
	require.Equal(t, "list", gjson.Get(g.Do(t, "GET", "/v1/models", "").Body, "object").String())
	const version = "Anthropic-Version: 2023-06-01"
	body := g.Do(t, "GET", "/v1/models?limit=2", "", version).Body
	require.Equal(t, "m1", gjson.Get(body, "data.0.id").String())
	require.Equal(t, "model", gjson.Get(body, "data.0.type").String())
	require.Equal(t, "m1", gjson.Get(body, "data.0.display_name").String())
	require.Equal(t, "2023-11-14T22:13:20Z", gjson.Get(body, "data.0.created_at").String())
	require.True(t, gjson.Get(body, "has_more").Bool())
	last := gjson.Get(body, "last_id").String()
	body = g.Do(t, "GET", "/v1/models?limit=1000&after_id="+last, "", version).Body
	require.Equal(t, int64(1), gjson.Get(body, "data.#").Int())
	require.False(t, gjson.Get(body, "has_more").Bool())
	body = g.Do(t, "GET", "/v1/models?limit=1&before_id=agent%2Fhelper", "", version).Body
	require.Equal(t, "org/m2", gjson.Get(body, "data.0.id").String())
	require.Equal(t, "m1", gjson.Get(g.Do(t, "GET", "/v1/models/m1", "", version).Body, "display_name").String())
}

// Clients of the Messages API read every error in its shape, also of what is not served.
func TestMessagesClientsReadEveryErrorInTheirShape(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, nil)
	const version = "Anthropic-Version: 2023-06-01"
	for _, row := range []struct {
		method, path string
		header       []string
		status       int
		kind         string
	}{
		{"POST", "/v1/messages/batches", nil, 404, "not_found_error"},
		{"GET", "/v1/messages/batches/x/results", nil, 404, "not_found_error"},
		{"GET", "/v1/messages", nil, 405, "invalid_request_error"},
		{"GET", "/v1/models/none", []string{version}, 404, "not_found_error"},
		{"GET", "/v1/files", []string{version}, 404, "not_found_error"},
	} {
		res := g.Do(t, row.method, row.path, "", row.header...)
		require.Equal(t, row.status, res.StatusCode, res.Body)
		require.Equal(t, "error", gjson.Get(res.Body, "type").Str, res.Body)
		require.Equal(t, row.kind, gjson.Get(res.Body, "error.type").Str, res.Body)
		require.Equal(t, res.Header.Get("Request-Id"), gjson.Get(res.Body, "request_id").Str)
	}
	g.Do(t, "GET", "/v1/models/none", "").IsFault(t, messages.ModelNotFound)
	g.Do(t, "GET", "/v1/messagesx", "").IsFault(t, messages.NotFound)
}
