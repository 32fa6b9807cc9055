package httpapi

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// TestGoOpenAIClient speaks to the gateway as a client library does, base URL with /v1 and a key.
func TestGoOpenAIClient(t *testing.T) {
	t.Parallel()
	client := func(g *testGateway, key string) *openai.Client {
		c := openai.DefaultConfig(key)
		c.BaseURL = g.URL + "/v1"
		return openai.NewClientWithConfig(c)
	}
	ask := openai.ChatCompletionRequest{Model: "m1",
		Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hi"}}}
	keyed := func(_ *Config, p *Deps) { p.Keys = twoTenants(t) }

	g := start(t,
		&apitest.Entry{Target: apitest.Replies(`{"id":"c","object":"chat.completion","choices":[{"index":0,` +
			`"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}`)}, keyed)
	got, err := client(g, "key-a").CreateChatCompletion(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, "yes", got.Choices[0].Message.Content)
	models, err := client(g, "key-a").ListModels(t.Context())
	require.NoError(t, err)
	require.Len(t, models.Models, 3)
	_, err = client(g, "key-x").CreateChatCompletion(t.Context(), ask)
	var api *openai.APIError
	require.ErrorAs(t, err, &api)
	require.Equal(t, http.StatusUnauthorized, api.HTTPStatusCode)
	require.Equal(t, "invalid_api_key", api.Code)

	read := func(g *testGateway) (text string, err error) {
		s, err := client(g, "key-a").CreateChatCompletionStream(t.Context(), ask)
		if err != nil {
			return "", err
		}
		defer s.Close()
		for {
			c, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return text, nil
			}
			if err != nil {
				return text, err
			}
			text += c.Choices[0].Delta.Content
		}
	}
	text, err := read(start(t, &apitest.Entry{Target: streams(ends, chunk("a", "null"), chunk("b", `"stop"`))}, keyed))
	require.NoError(t, err)
	require.Equal(t, "ab", text)

	text, err = read(start(t, &apitest.Entry{Target: streams(cut, chunk("a", "null"))}, keyed))
	require.Equal(t, "a", text)
	require.ErrorAs(t, err, &api, "a cut stream is an error to the client, never a short success")
	require.Equal(t, "stream_cut", api.Code)

	_, err = read(start(t,
		&apitest.Entry{Target: apitest.Faults(messages.NewFault(messages.ProviderLimited,
			"slow").From(messages.TargetOrigin))}, keyed))
	require.ErrorAs(t, err, &api)
	require.Equal(t, http.StatusTooManyRequests, api.HTTPStatusCode)
}
