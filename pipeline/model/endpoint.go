package model

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// Timeouts bound one run of a model. Zero fields mean the defaults of contracts T4.
type Timeouts struct {
	Connect    time.Duration // until a connection stands; 10s
	FirstToken time.Duration // of a stream: until the first chunk that is more than a role; 60s
	Idle       time.Duration // of a stream: between two signs of life after the first token; 30s
	Total      time.Duration // of the whole run; 10m
}

func (t Timeouts) orDefaults() Timeouts {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&t.Connect, 10*time.Second)
	def(&t.FirstToken, 60*time.Second)
	def(&t.Idle, 30*time.Second)
	def(&t.Total, 10*time.Minute)
	return t
}

// FilterMaker makes a stage's chunk filter for one call; see pipeline.Stage.Filter.
type FilterMaker = stream.FilterMaker

// Config is what an endpoint is made of.
type Config struct {
	Table    *Table
	Timeouts Timeouts
	// Filters returns the maker of a stage's chunk filter, by the stage's name, from this process's own registry. A
	// stage that is unknown here holds the stream back. Nil means that none is known.
	Filters func(stage string) (FilterMaker, bool)
	Log     *slog.Logger
}

// Bounds on what a provider may send.
const (
	maxReply = 64 << 20 // bytes of a reply, streamed or not
	maxEvent = 16 << 20 // bytes of one event of a stream
	maxError = 1 << 20  // bytes of an error body
)

// doneGrace is how long a stream whose choices are all finished is still read for its usage chunk and [DONE].
const doneGrace = 2 * time.Second

// Endpoint is the target of model calls. It is safe for concurrent use; a call may be run twice, and carries the same
// Idempotency-Key upstream each time (contracts 28).
type Endpoint struct {
	Config
	client *http.Client
}

var _ pipeline.Target = (*Endpoint)(nil)

// NewEndpoint makes an endpoint with a connection pool of its own; Close ends its idle connections.
func NewEndpoint(c Config) (*Endpoint, error) {
	if c.Table == nil {
		return nil, errors.New("model endpoint: no table of providers")
	}
	c.Timeouts = c.Timeouts.orDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Endpoint{Config: c, client: newClient(c.Timeouts.Connect)}, nil
}

func newClient(connect time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: connect,
			ForceAttemptHTTP2: true, MaxIdleConns: 512, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
			DisableCompression: true, // a gzip reader would hold events of a stream back
		},
		// A redirect would send the body, and maybe the key, to somebody nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close ends the idle connections. Calls that run go on.
func (e *Endpoint) Close() { e.client.CloseIdleConnections() }

// Do sends the call's request to the provider of its model and sets the reply, whose bytes are the provider's (or
// the sum of its chunks). Chunks of a streamed call go to emit, as contracts 8 says; the raw chunks that end the
// stream go into the note stream.tail. Faults are those of contracts T2; when ctx ends, its error is returned.
func (e *Endpoint) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	c.Unnote(messages.NoteStreamTail) // of an earlier attempt
	c.Unnote(messages.NoteUpstreamHeaders)
	body := c.Request()
	if _, text := c.RequestText(); text || len(body) == 0 || body[0] != '{' {
		return messages.NewFault(messages.InvalidRequest, "a chat request is a JSON object")
	}
	asked := chat.ModelName(body)
	if !c.MayModel(asked) { // also where a stage has chosen it, or a call is made for the caller's
		return messages.NewFault(messages.Forbidden, "the key may not use model %q", asked).At("model").From("entry")
	}
	p, name, err := e.Table.Resolve(asked)
	if err != nil {
		return err
	}
	body, stream := prepare(body, name, c.Stream)
	parent := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, e.Timeouts.Total, messages.NewFault(messages.ProviderTimeout,
		"provider %s: no whole reply within %s (models.timeouts.total)", p.Name, e.Timeouts.Total))
	defer cancel()
	run := &run{Endpoint: e, provider: p, call: c, emit: emit, stream: stream, body: body}
	err = run.do(ctx)
	if perr := parent.Err(); err != nil && perr != nil {
		return perr // the caller's reason is the reason, whatever the connection made of it
	}
	return err
}

// prepare makes the bytes to send: those of the request, but for the model's name without the provider prefix, and
// stream where the caller reads a stream and the body does not say so.
func prepare(body []byte, model string, stream bool) ([]byte, bool) {
	if chat.ModelName(body) != model {
		body = rawjson.SetFieldString(body, "model", model)
	}
	raw, _ := rawjson.Field(body, "stream")
	if string(raw) == "true" {
		return body, true // also where nobody reads chunks: some models answer in no other way
	}
	if stream {
		return rawjson.SetField(body, "stream", []byte("true")), true
	}
	return body, false
}

// run is one run of a model for one call.
type run struct {
	*Endpoint
	provider Provider
	call     *messages.Call
	emit     pipeline.Emit
	stream   bool
	body     []byte
}

func (r *run) do(ctx context.Context) error {
	ctx, clock := newClock(ctx)
	defer clock.end()
	if r.stream {
		clock.set(r.Timeouts.FirstToken, r.timeout("no first token", r.Timeouts.FirstToken, "first-token"))
	}
	x := &exchange{client: r.provider.Client, body: r.body, header: r.header()}
	if x.client == nil {
		x.client = r.client
	}
	res, err := x.chat(ctx, r.provider, r.stream)
	if err != nil {
		if why := ended(ctx); why != nil {
			return unsent(why, !x.sent.Load() && r.provider.Client == nil)
		}
		return transportFault(r.provider, err, x.sent.Load())
	}
	defer func() { _ = res.Body.Close() }()
	if kept := r.provider.keptHeaders(res.Header); kept != nil {
		r.call.Note(messages.NoteUpstreamHeaders, kept)
	}
	if res.StatusCode != http.StatusOK {
		b, _ := readAll(res.Body, maxError)
		if why := ended(ctx); why != nil {
			return why
		}
		return errorFault(r.provider, res.StatusCode, res.Header, b)
	}
	if isEventStream(res.Header, r.stream) {
		return r.readStream(ctx, clock, res)
	}
	clock.halt()
	return r.readWhole(ctx, res)
}

func (r *run) timeout(what string, d time.Duration, key string) *messages.Fault {
	return messages.NewFault(messages.ProviderTimeout, "provider %s: %s within %s (models.timeouts.%s)", r.provider.Name, what, d, key)
}

func unsent(err error, is bool) error {
	if f, ok := errors.AsType[*messages.Fault](err); ok && is {
		g := *f
		g.Unsent = true
		return &g
	}
	return err
}

// isEventStream trusts the content type, and where there is none of use, what was asked for.
func isEventStream(h http.Header, asked bool) bool {
	kind := strings.ToLower(h.Get("Content-Type"))
	switch {
	case strings.HasPrefix(kind, "text/event-stream"):
		return true
	case strings.HasPrefix(kind, "application/json"), strings.HasPrefix(kind, "text/html"):
		return false
	}
	return asked
}

// readWhole takes a reply that came in one piece, also for a streamed call: then the caller's side replays it.
func (r *run) readWhole(ctx context.Context, res *http.Response) error {
	b, err := readAll(res.Body, maxReply)
	if why := ended(ctx); err != nil && why != nil {
		return why
	}
	switch {
	case errors.Is(err, chat.ErrTooLong):
		return r.badReply("its reply is longer than %d bytes", maxReply)
	case err != nil:
		return messages.NewFault(messages.ProviderError, "provider %s broke the connection within its reply: %s", r.provider.Name, r.provider.scrub(err.Error()))
	case !json.Valid(b):
		return r.badReply("its reply (%s, %d bytes) is not JSON; check its base-url", orText(res.Header.Get("Content-Type"), "no content type"), len(b))
	}
	if e, ok := rawjson.Field(b, "error"); ok && !rawjson.IsNull(e) {
		return errorFault(r.provider, res.StatusCode, res.Header, b)
	}
	if len(chat.Choices(b)) == 0 {
		return r.badReply("its reply has no choices")
	}
	r.call.SetReply(b)
	return nil
}

func (r *run) badReply(format string, args ...any) *messages.Fault {
	return messages.NewFault(messages.ProviderBadReply, "provider %s: %s", r.provider.Name, fmt.Sprintf(format, args...))
}

// header is what goes upstream besides what go-openai sets.
func (r *run) header() http.Header {
	h := http.Header{}
	set := func(key, value string) {
		if value != "" {
			h.Set(key, value)
		}
	}
	id := r.call.RequestID
	if id == "" {
		id = r.call.ID
	}
	set("X-Request-Id", id)
	set("Traceparent", r.call.Trace.Parent)
	if r.call.Trace.Parent != "" {
		set("Tracestate", r.call.Trace.State)
	}
	set("Idempotency-Key", r.idempotencyKey())
	for key, value := range r.provider.Headers {
		set(key, value.Reveal())
	}
	return h
}

// idempotencyKey is the same for each run of one attempt, after a crash too, and another for any other attempt, model
// or body: a provider that compares bodies must not refuse a standby or an edited request.
func (r *run) idempotencyKey() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n", r.call.ID, r.provider.Name)
	for _, f := range r.call.Slip.Frames {
		if f.Attempt > 1 && f.Stop < len(r.call.Slip.Stops) {
			fmt.Fprintf(sum, "%s %d\n", r.call.Slip.Stops[f.Stop].Name, f.Attempt)
		}
	}
	_, _ = io.Copy(sum, bytes.NewReader(r.body))
	return "shallot-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum.Sum(nil)[:20]))
}
