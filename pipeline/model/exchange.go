package model

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	openai "github.com/sashabaranov/go-openai"

	"github.com/shallot-nats/shallot/messages/chat"
)

// exchange is one request to a provider through go-openai. go-openai builds the request (URL, authorisation, headers)
// for a body that nobody sends; the exchange is its HTTP client, puts the raw body in, and keeps the raw response for
// itself. So neither a request nor a reply ever passes through go-openai's structs, which would lose fields.
type exchange struct {
	client Doer
	body   []byte
	header http.Header

	sent     atomic.Bool // a connection was there: the request may have reached the provider
	response *http.Response
}

// Do is go-openai's HTTPDoer.
func (x *exchange) Do(req *http.Request) (*http.Response, error) {
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) },
	}))
	if x.body != nil {
		req.Body = io.NopCloser(bytes.NewReader(x.body))
		req.ContentLength = int64(len(x.body))
		req.GetBody = nil // no hidden second sending by net/http
	}
	req.Header.Del("Connection")
	for key, values := range x.header {
		req.Header[key] = values
	}
	res, err := x.client.Do(req)
	if err != nil {
		return nil, err
	}
	x.response = res
	// go-openai gets an empty answer to decode.
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Request: req,
		Body: io.NopCloser(strings.NewReader("{}")),
	}, nil
}

// chat sends a chat completion request and returns the raw response; the caller closes its body.
func (x *exchange) chat(ctx context.Context, p Provider, stream bool) (*http.Response, error) {
	c := x.openAI(p)
	// The model is a place holder: go-openai refuses some names and fields by itself, and the provider is to judge.
	if stream {
		s, err := c.CreateChatCompletionStream(ctx, openai.ChatCompletionRequest{Model: "raw"})
		if err == nil {
			err = s.Close()
		}
		return x.response, err
	}
	_, err := c.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "raw"})
	return x.response, err
}

// models sends the request for the provider's list of models; the caller closes the body.
func (x *exchange) models(ctx context.Context, p Provider) (*http.Response, error) {
	_, err := x.openAI(p).ListModels(ctx)
	return x.response, err
}

func (x *exchange) openAI(p Provider) *openai.Client {
	config := openai.DefaultConfig(p.APIKey.Reveal())
	config.BaseURL = p.BaseURL
	config.HTTPClient = x
	return openai.NewClientWithConfig(config)
}

// readAll reads a body up to a limit.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, chat.ErrTooLong
	}
	return b, err
}

// isTimeout reports whether an error of the transport is a timeout of its own (dial, TLS).
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
