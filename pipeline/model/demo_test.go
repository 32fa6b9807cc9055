package model_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/model"
)

func TestDemoEcho(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1")
	body := `{"model":"demo/echo","messages":[{"role":"system","content":"be kind"},{"role":"user",` +
		`"content":"hello  onion\nworld"}],"n":2}`
	c, _ := ask(t.Context(), e, body, false)
	require.Nil(t, c.Fault)
	choices := chat.Choices(c.Reply())
	require.Len(t, choices, 2)
	require.Equal(t, "hello  onion\nworld", choices[1].Message().Text())
	usage, _ := rawjson.Field(c.Reply(), "usage")
	require.JSONEq(t, `{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}`, string(usage))
	again, _ := ask(t.Context(), e, body, false)
	require.Equal(t, string(c.Reply()), string(again.Reply()))

	s, out := ask(t.Context(), e, messageStream(body), true)
	require.Nil(t, s.Fault)
	require.Greater(t, len(out), 4)
	require.Len(t, tailOf(s), 3, "two finish chunks and the usage")
	require.Equal(t, "hello  onion\nworld", chat.Choices(s.Reply())[0].Message().Text())
}

func messageStream(body string) string {
	b := rawjson.SetField([]byte(body), "stream", []byte("true"))
	return string(rawjson.SetField(b, "stream_options", []byte(`{"include_usage":true}`)))
}

func TestDemoSlowStopsWithItsCaller(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	c := messages.NewCall(messages.Model, "t", []byte(`{"model":"demo/slow","messages":[{"role":"user","content":"`+
		strings.Repeat("w ", 2000)+`"}]}`))
	c.Stream = true
	begin := time.Now()
	err := e.Do(ctx, c, func([]byte) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(begin), time.Minute, "the whole answer takes two")
}

func TestDemoTools(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1")
	body := `{"model":"demo/tools","messages":[{"role":"user","content":"Paris"}],"tools":[{"type":"function",` +
		`"function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"},` +
		`"unit":{"enum":["C","F"]},"days":{"type":"integer","minimum":2},"where":{"type":"object","properties":{` +
		`"x":{"type":"number"}}},"tags":{"type":"array","items":{"type":"string"}},"skip":{"type":"string"}},` +
		`"required":["city","unit","days","where","tags"]}}}]}`
	c, _ := ask(t.Context(), e, body, false)
	require.Nil(t, c.Fault)
	m := chat.Choices(c.Reply())[0].Message()
	require.Equal(t, "weather", m.ToolCalls()[0].Name())
	require.JSONEq(t, `{"city":"Paris","unit":"C","days":2,"where":{"x":1},"tags":["Paris"]}`,
		m.ToolCalls()[0].Arguments())
	s, out := ask(t.Context(), e, messageStream(body), true)
	require.Nil(t, s.Fault)
	require.NotEmpty(t, out)
	require.Equal(t, m.ToolCalls()[0].Arguments(), chat.Choices(s.Reply())[0].Message().ToolCalls()[0].Arguments())

	c, _ = ask(t.Context(), e, `{"model":"demo/tools","messages":[{"role":"user","content":"Paris"},{`+
		`"role":"tool","tool_call_id":"x","content":"sunny"}],"tools":[{}]}`, false)
	require.Equal(t, "sunny", text(c))
	c, _ = ask(t.Context(), e, `{"model":"demo/tools","messages":[{"role":"user","content":"hi"}]}`, false)
	require.Contains(t, text(c), "hi")
	for _, odd := range []string{`[{}]`, `[{"function":{"name":"f"}}]`, `[{"function":{"name":"f","parameters":{` +
		`"type":"string"}}}]`, `[{"function":{"name":"f","parameters":{"default":3}}}]`} {
		c, _ = ask(t.Context(), e, `{"model":"demo/tools","messages":[],"tools":`+odd+`}`, false)
		require.Nil(t, c.Fault)
		require.True(t, json.Valid([]byte(chat.Choices(c.Reply())[0].Message().ToolCalls()[0].Arguments())))
	}
}

func TestDemoFail(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1", func(c *model.Config) {
		c.Timeouts.FirstToken, c.Timeouts.Total = 200*time.Millisecond, time.Second
	})
	for say, want := range map[string][2]messages.Code{ // whole, streamed
		"fail 429":              {messages.ProviderLimited, messages.ProviderLimited},
		"please Fail 500, now":  {messages.ProviderError, messages.ProviderError},
		"fail 401":              {messages.ProviderAuth, messages.ProviderAuth},
		"fail 404":              {messages.ModelNotFound, messages.ModelNotFound},
		"fail 422":              {messages.ProviderRejected, messages.ProviderRejected},
		"fail quota":            {messages.ProviderQuota, messages.ProviderQuota},
		"fail context":          {messages.ContextLength, messages.ContextLength},
		"fail cut 3":            {messages.ProviderError, messages.StreamCut},
		"fail html":             {messages.ProviderBadReply, messages.ProviderBadReply},
		"fail malformed":        {messages.ProviderBadReply, messages.ProviderBadReply},
		"fail timeout":          {messages.ProviderTimeout, messages.ProviderTimeout},
		"fail refused":          {messages.ProviderError, messages.ProviderError},
		"fail":                  {"", ""},
		"fail in some odd way":  {"", ""},
		"fail empty":            {"", ""},
		"what else can you do?": {"", ""},
	} {
		body := string(rawjson.Encode(map[string]any{"model": "demo/fail",
			"messages": []any{map[string]string{"role": "user", "content": say}}}))
		for i, stream := range []bool{false, true} {
			c, out := ask(t.Context(), e, body, stream)
			if want[i] == "" {
				require.Nil(t, c.Fault, say)
				require.Equal(t, say == "fail empty", chat.EmptyReply(c.Reply()))
				continue
			}
			require.NotNil(t, c.Fault, say)
			require.Equal(t, want[i], c.Fault.Code, "%s: %s", say, c.Fault.Message)
			if say == "fail cut 3" && stream {
				require.Len(t, out, 4, "the role and three words")
			}
		}
	}
}
