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

	"github.com/shallot-nats/shallot/messages"
)

// exchange is one request to a provider. go-openai knows the URL, the authorisation and the headers of chat completions
// (see form) and of the list of models; the exchange puts the raw body in and keeps the raw response. So neither requests
// nor replies pass through go-openai's structs, which would lose fields.
type exchange struct {
	clients
	body   []byte
	header http.Header

	sent     atomic.Bool // there was a connection: the request may have reached the provider
	reused   atomic.Bool // the connection had served a request before
	answered atomic.Bool // a byte of an answer came
	response *http.Response
}

// Do implements Doer for go-openai, which decodes the empty answer that it gets.
func (x *exchange) Do(req *http.Request) (*http.Response, error) {
	if err := x.do(req); err != nil {
		return nil, err
	}
	return nothing(req), nil
}

func nothing(req *http.Request) *http.Response {
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Request: req,
		Body: io.NopCloser(strings.NewReader("{}")),
	}
}

// do sends the request with the raw body and keeps the raw response.
func (x *exchange) do(req *http.Request) error {
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), x.trace()))
	return x.post(req)
}

// trace notes how far the request came.
func (x *exchange) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			x.sent.Store(true)
			x.reused.Store(c.Reused)
		},
		GotFirstResponseByte: func() { x.answered.Store(true) },
	}
}

// post is do for a request whose context has the trace.
func (x *exchange) post(req *http.Request) error {
	req.Header.Del("Connection")
	for key, values := range x.header {
		req.Header[key] = values
	}
	res, err := x.kept.Do(x.withBody(req))
	if err != nil && x.stale(req.Context(), err) {
		res, err = x.fresh.Do(x.withBody(req))
	}
	if err != nil {
		return err
	}
	x.response = res
	return nil
}

// withBody puts the raw body in.
func (x *exchange) withBody(req *http.Request) *http.Request {
	if x.body != nil {
		req.Body = io.NopCloser(bytes.NewReader(x.body))
		req.ContentLength = int64(len(x.body))
		req.GetBody = nil // net/http must not send it twice on its own
	}
	return req
}

// stale reports whether a kept connection broke before a byte of an answer came: the provider has most likely closed it
// while it was idle, just as the request left. That is not a failure of the provider, so the request is sent once more,
// with the same Idempotency-Key, on a new connection.
func (x *exchange) stale(ctx context.Context, err error) bool {
	return x.fresh != nil && x.reused.Load() && !x.answered.Load() && ctx.Err() == nil && !isTimeout(err)
}

// chat sends a chat completion request and returns the raw response; the caller closes its body.
func (x *exchange) chat(ctx context.Context, p Provider, stream bool) (*http.Response, error) {
	of := x.plain
	if stream {
		of = x.streamed
	}
	if of.err != nil {
		return nil, of.err
	}
	req := of.request.WithContext(httptrace.WithClientTrace(ctx, x.trace()))
	req.Header = of.request.Header.Clone()
	p.authorise(req, messages.ChatWire)
	err := x.post(req)
	return x.response, err
}

// form is the request for chat completions at a provider as go-openai builds it, without the body and without the key.
// It is the same for all calls, so it is built once.
type form struct {
	request *http.Request
	err     error
}

func formOf(p Provider, stream bool) (f form) {
	c := openAI(p, formTaker{&f})
	// The model is a placeholder: go-openai refuses some names and fields itself, and only the provider should.
	asked := openai.ChatCompletionRequest{Model: "raw"}
	if !stream {
		_, f.err = c.CreateChatCompletion(context.Background(), asked)
		return f
	}
	s, err := c.CreateChatCompletionStream(context.Background(), asked)
	if err == nil {
		err = s.Close()
	}
	f.err = err
	return f
}

// formTaker keeps the request that it is to send.
type formTaker struct{ *form }

// Do implements Doer.
func (t formTaker) Do(req *http.Request) (*http.Response, error) {
	req.Body, req.GetBody, req.ContentLength = nil, nil, 0
	req.Header.Del("Authorization") // whatever prints the endpoint must not print the key
	t.request = req
	return nothing(req), nil
}

// models sends the request for the provider's list of models; the caller closes the body.
func (x *exchange) models(ctx context.Context, p Provider) (*http.Response, error) {
	if len(p.Wires) > 0 && p.Wires[0] == messages.MessagesWire {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.BaseURL+"/models?limit=1000", http.NoBody)
		if err != nil {
			return nil, err
		}
		p.authorise(req, messages.MessagesWire)
		err = x.do(req)
		return x.response, err
	}
	_, err := openAI(p, x).ListModels(ctx)
	return x.response, err
}

func openAI(p Provider, client Doer) *openai.Client {
	config := openai.DefaultConfig(p.APIKey.Reveal())
	config.BaseURL = p.BaseURL
	config.HTTPClient = client
	return openai.NewClientWithConfig(config)
}

// isTimeout reports whether an error of the transport is a timeout of its own (dial, TLS).
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
