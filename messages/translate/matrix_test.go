package translate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/translate"
)

var update = flag.Bool("update", false, "write the golden files")

var wires = []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}

func pair(client, provider messages.Wire) translate.Pair {
	return translate.Pair{Client: client, Provider: provider, Owner: "p/m", ID: "c1", Created: 7}
}

// bodies are the cases of a wire: what stands in testdata/<wire>/<case>.<what>.json.
func bodies(t testing.TB, w messages.Wire, what string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", string(w), "*."+what+".json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	out := map[string][]byte{}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		require.NoError(t, err)
		raw = bytes.TrimSpace(raw)
		require.True(t, json.Valid(raw), p)
		out[strings.TrimSuffix(filepath.Base(p), "."+what+".json")] = raw
	}
	return out
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	path = filepath.Join("testdata", "golden", path)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run: go test ./messages/translate -update")
	require.Equal(t, string(want), got)
}

func lines(pieces [][]byte) string { return string(bytes.Join(pieces, []byte("\n"))) + "\n" }

// Every client wire on every provider wire: on the diagonal nothing changes, off it the golden file says what does.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, client := range wires {
		for _, provider := range wires {
			for name, body := range bodies(t, client, "request") {
				t.Run(fmt.Sprintf("request %s to %s %s", client, provider, name), func(t *testing.T) {
					t.Parallel()
					out, dropped, err := pair(client, provider).Request(body)
					if client == provider {
						require.NoError(t, err)
						require.Equal(t, string(body), string(out))
						require.Equal(t, string(body), string(pair(client, provider).Own(body, true)))
						return
					}
					got := fmt.Sprintf("%s\ndropped: %s\nrefused: %v\n", out, strings.Join(dropped, ", "), err)
					golden(t, fmt.Sprintf("%s-over-%s/%s.request", client, provider, name), got)
					require.True(t, err != nil || json.Valid(out), "%s", out)
				})
			}
			for name, reply := range bodies(t, provider, "reply") {
				t.Run(fmt.Sprintf("reply %s to %s %s", provider, client, name), func(t *testing.T) {
					t.Parallel()
					request := bodies(t, client, "request")["tools"]
					out, err := pair(client, provider).Reply(request, reply)
					require.NoError(t, err)
					if client == provider {
						require.Equal(t, string(reply), string(out))
						return
					}
					s := pair(client, provider).Stream(request)
					var pieces [][]byte
					for _, e := range events.Replay(provider, []byte(`{"stream_options":{"include_usage":true}}`), reply) {
						pieces = append(pieces, s.Add(e)...)
					}
					pieces = append(pieces, s.End()...)
					golden(t, fmt.Sprintf("%s-over-%s/%s.reply", client, provider, name),
						string(out)+"\n"+lines(pieces))
				})
			}
		}
	}
}

// What a provider signed goes through any client and comes back to it as it was, and to nobody else.
func TestReasoningComesBackToItsMaker(t *testing.T) {
	t.Parallel()
	marks := map[messages.Wire][]string{
		messages.ChatWire:      {`"signature":"U0lH"`},
		messages.ResponsesWire: {`"id":"rs_1"`, `"encrypted_content":"RU5D"`},
		messages.MessagesWire: {`{"type":"thinking","thinking":"6 times 7","signature":"U0lH"}`,
			`{"type":"redacted_thinking","data":"UkVE"}`},
	}
	for _, client := range wires {
		for _, provider := range wires {
			if client == provider {
				continue
			}
			t.Run(fmt.Sprintf("%s through %s", provider, client), func(t *testing.T) {
				t.Parallel()
				p := pair(client, provider)
				reply, err := p.Reply([]byte(`{"model":"m"}`), bodies(t, provider, "reply")["reasoning"])
				require.NoError(t, err)
				next := again(client, reply)
				out, _, err := p.Request(next)
				require.NoError(t, err)
				for _, mark := range marks[provider] {
					require.Contains(t, string(out), mark)
				}
				other := p
				other.Owner = "p/other"
				out, _, err = other.Request(next)
				require.NoError(t, err)
				for _, mark := range marks[provider] {
					require.NotContains(t, string(out), mark)
				}
				require.NotContains(t, string(out), "shallot.", "a seal is nobody's text")
				own := translate.Pair{Client: client, Provider: client, Owner: "p/m"}
				require.NotContains(t, string(own.Own(next, true)), "shallot.", "a provider of the client's own wire")
			})
		}
	}
}

// again is the request with which a client goes on after a reply.
func again(w messages.Wire, reply []byte) []byte {
	var v map[string]any
	_ = json.Unmarshal(reply, &v)
	var body any
	switch w {
	case messages.ChatWire:
		m := v["choices"].([]any)[0].(map[string]any)["message"]
		body = map[string]any{"model": "m", "messages": []any{m, map[string]any{"role": "user", "content": "go on"}}}
	case messages.ResponsesWire:
		body = map[string]any{"model": "m", "input": append(v["output"].([]any),
			map[string]any{"role": "user", "content": "go on"})}
	case messages.MessagesWire:
		body = map[string]any{"model": "m", "max_tokens": 9, "messages": []any{
			map[string]any{"role": "assistant", "content": v["content"]},
			map[string]any{"role": "user", "content": "go on"}}}
	}
	raw, _ := json.Marshal(body)
	return raw
}

// A standby that speaks the client's own wire seals what it signs; its seals come back to it, and to it alone.
func TestSealsOfAStandby(t *testing.T) {
	t.Parallel()
	for _, w := range wires {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			p := pair(w, w)
			reply := bodies(t, w, "reply")["reasoning"]
			sealed := p.Seal(reply)
			require.NotEqual(t, string(reply), string(sealed))
			next, plain := again(w, sealed), again(w, reply)
			require.Equal(t, string(plain), string(p.Own(next, false)), "its own")
			require.NotContains(t, string(p.Own(plain, false)), "U0lH", "the first model's")
			p.Owner = "q"
			require.NotContains(t, string(p.Own(next, true)), "shallot.", "another's")
		})
	}
}

// What two settings exclude, and what one wire alone has, is said.
func TestWhatIsSaid(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		client, provider messages.Wire
		body             string
		dropped          string
		refused          string
	}{
		{messages.ChatWire, messages.MessagesWire, `{"model":"m","reasoning_effort":"low","temperature":0.2,"top_p":0.5,` +
			`"messages":[{"role":"user","name":"joe","content":[{"type":"image_url","image_url":{"url":"https://x/y",` +
			`"detail":"high"}}]}]}`, "image detail, messages.name, temperature with reasoning, top_p with reasoning", ""},
		{messages.ChatWire, messages.MessagesWire, `{"model":"m","temperature":1.5,"messages":[]}`,
			"temperature above 1", ""},
		{messages.ChatWire, messages.MessagesWire, `{"model":"m","logprobs":true,"messages":[]}`, "", "logprobs"},
		{messages.ChatWire, messages.ResponsesWire, `{"model":"m","n":3,"messages":[]}`, "", "n"},
		{messages.ResponsesWire, messages.ChatWire, `{"model":"m","input":[{"type":"item_reference","id":"x"}]}`, "",
			"input[0]"},
		{messages.ResponsesWire, messages.ChatWire, `{"model":"m","previous_response_id":"r","input":"x"}`, "",
			"previous_response_id"},
		{messages.ResponsesWire, messages.ChatWire, `{"model":"m","input":"x","tools":[{"type":"file_search"}]}`, "",
			"tools"},
		{messages.ResponsesWire, messages.ChatWire, `{"model":"m","input":"x","tools":[{"type":"web_search"}],` +
			`"tool_choice":{"type":"web_search"}}`, "", "tool_choice"},
		{messages.ResponsesWire, messages.MessagesWire, `{"model":"m","input":[{"role":"assistant","phase":"commentary",` +
			`"content":"x"}],"max_tool_calls":3,"service_tier":"auto"}`, "input.phase, max_tool_calls", ""},
		{messages.MessagesWire, messages.ChatWire, `{"model":"m","max_tokens":1,"mcp_servers":[{}],"messages":[{"role":` +
			`"user","content":[{"type":"document","citations":{"enabled":true},"source":{"type":"text","data":"x"}}]}]}`,
			"citations, mcp_servers", ""},
		{messages.MessagesWire, messages.ChatWire, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{` +
			`"type":"image","source":{"type":"file","file_id":"f"}}]}]}`, "", "image"},
	} {
		out, dropped, err := pair(row.client, row.provider).Request([]byte(row.body))
		if row.refused != "" {
			f, ok := errors.AsType[*messages.Fault](err)
			require.True(t, ok, row.body)
			require.Equal(t, messages.InvalidRequest, f.Code)
			require.Equal(t, row.refused, f.Param)
			continue
		}
		require.NoError(t, err, row.body)
		require.Equal(t, row.dropped, strings.Join(dropped, ", "), "%s", out)
	}
}

// What means nothing on any wire is refused by name, and not left out.
func TestWhatMeansNothingIsRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		client messages.Wire
		more   string
		param  string
	}{
		{messages.ChatWire, `"max_tokens":0`, "max_tokens"},
		{messages.ChatWire, `"max_completion_tokens":-1`, "max_completion_tokens"},
		{messages.ChatWire, `"tool_choice":"required"`, "tool_choice"},
		{messages.ChatWire, `"messages":[{"role":"robot","content":"x"}]`, "messages[0].role"},
		{messages.ResponsesWire, `"max_output_tokens":0`, "max_output_tokens"},
		{messages.ResponsesWire, `"tool_choice":{"type":"function","name":"f"}`, "tool_choice"},
		{messages.ResponsesWire, `"input":[{"role":"robot","content":"x"}]`, "input[0].role"},
		{messages.ResponsesWire, `"input":[{"role":"user","content":[{"type":"input_image"}]}]`, "image"},
		{messages.ResponsesWire, `"input":[{"type":"function_call_output","call_id":"a","output":[{"type":"input_file"}]}]`,
			"file"},
		{messages.ChatWire, `"messages":[{"role":"user","content":[{"type":"image_url"}]}]`, "image"},
		{messages.MessagesWire, `"max_tokens":0`, "max_tokens"},
		{messages.MessagesWire, `"max_tokens":"8"`, "max_tokens"},
		{messages.MessagesWire, `"tool_choice":{"type":"any"}`, "tool_choice"},
		{messages.MessagesWire, `"messages":[{"role":"tool","content":"x"}]`, "messages[0].role"},
	} {
		for _, provider := range wires {
			body := []byte(`{"model":"m",` + row.more + `}`)
			out, _, err := pair(row.client, provider).Request(body)
			if provider == row.client {
				require.Equal(t, string(body), string(out), "the provider judges")
				continue
			}
			f, ok := errors.AsType[*messages.Fault](err)
			require.True(t, ok, "%s to %s: %s", row.client, provider, row.more)
			require.Equal(t, row.param, f.Param)
		}
	}
	_, dropped, err := pair(messages.MessagesWire, messages.ChatWire).Request([]byte(`{"model":"m","max_tokens":9,` +
		`"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"{"}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"messages: the beginning of the answer"}, dropped)
}
