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
)

// exchange is one request to a provider through go-openai. go-openai builds the request (URL, authorisation, headers)
// for a body that nobody sends; the exchange is its HTTP client, puts the raw body in, and keeps the raw response for
// itself. So neither a request nor a reply ever passes through go-openai's structs, which would lose fields.
type exchange struct {
	clients
	body   []byte
	header http.Header

	sent     atomic.Bool // a connection was there: the request may have reached the provider
	reused   atomic.Bool // the connection had served a request before
	answered atomic.Bool // a byte of an answer came
	response *http.Response
}

// Do is go-openai's HTTPDoer.
func (x *exchange) Do(req *http.Request) (*http.Response, error) {
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			x.sent.Store(true)
			x.reused.Store(c.Reused)
		},
		GotFirstResponseByte: func() { x.answered.Store(true) },
	}))
	req.Header.Del("Connection")
	for key, values := range x.header {
		req.Header[key] = values
	}
	res, err := x.kept.Do(x.withBody(req))
	if err != nil && x.stale(req.Context(), err) {
		res, err = x.fresh.Do(x.withBody(req))
	}
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

// withBody puts the raw body in.
func (x *exchange) withBody(req *http.Request) *http.Request {
	if x.body != nil {
		req.Body = io.NopCloser(bytes.NewReader(x.body))
		req.ContentLength = int64(len(x.body))
		req.GetBody = nil // no hidden second sending by net/http
	}
	return req
}

// stale reports whether a kept connection broke before a byte of an answer came: the provider has most likely closed it
// while it was idle, just as the request left. That is no failure of the provider; the request goes out once more, with
// the same Idempotency-Key, on a connection of its own.
func (x *exchange) stale(ctx context.Context, err error) bool {
	return x.fresh != nil && x.reused.Load() && !x.answered.Load() && ctx.Err() == nil && !isTimeout(err)
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

// isTimeout reports whether an error of the transport is a timeout of its own (dial, TLS).
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
