package model

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
	"github.com/shallot-nats/shallot/pipeline/stream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// FilterMaker makes a stage's chunk filter for one call; see pipeline.Stage.Filter.
type FilterMaker = stream.FilterMaker

// Config is what an endpoint is made of.
type Config struct {
	Table    *Table
	Timeouts Timeouts
	// Filters returns the maker of a stage's chunk filter, by the stage's name, from this process's own registry. A
	// stage that is unknown here holds the stream back. Nil means that no filter is known.
	Filters func(stage string) (FilterMaker, bool)
	// Standbys returns how many other models could still answer the call if this run fails: while there are any, a run
	// does not use all the time that the call has left. Nil means never any.
	Standbys func(c *messages.Call) int
	// LeastShare is the least time that a run gets then; 0 means 30s.
	LeastShare time.Duration
	Log        *slog.Logger
}

// Bounds on what a provider may send.
const (
	maxReply = 64 << 20 // bytes of a reply, streamed or not
	maxEvent = 16 << 20 // bytes of one event of a stream
	maxError = 1 << 20  // bytes of an error body
)

// errorPatience is how long we wait for the body of an error after its status has come.
const errorPatience = 5 * time.Second

// doneGrace is how long we read on for the usage chunk and [DONE] after all choices of a stream are finished.
const doneGrace = 2 * time.Second

// Endpoint is the target of model calls. It is safe for concurrent use. A call may be run twice; both requests upstream
// carry the same Idempotency-Key.
type Endpoint struct {
	Config
	clients  map[string]clients // by provider
	patience *patience
}

var _ pipeline.Target = (*Endpoint)(nil)

// NewEndpoint makes an endpoint with a connection pool of its own; Close ends its idle connections.
func NewEndpoint(c Config) (*Endpoint, error) {
	if c.Table == nil {
		return nil, errors.New("model endpoint: no table of providers")
	}
	c.Timeouts = c.Timeouts.or(defaultTimeouts)
	if c.LeastShare <= 0 {
		c.LeastShare = defaultShare
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	e := &Endpoint{Config: c, clients: map[string]clients{}, patience: &patience{}}
	for _, p := range c.Table.providers {
		e.clients[p.Name] = newClients(p, p.Timeouts.or(c.Timeouts).Connect)
	}
	return e, nil
}

// Close ends the idle connections. Running calls go on. It may be called twice.
func (e *Endpoint) Close() {
	for _, c := range e.clients {
		c.close()
	}
}

// Do sends the call's request to the provider of its model and sets the reply, whose bytes are the provider's (or the
// sum of its chunks). Chunks of a streamed call go to emit, through the chunk filters of the stages; the chunks that
// end the stream go into the note stream.tail. The error is a *messages.Fault, or the cause of ctx when that ends.
func (e *Endpoint) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	c.Unnote(messages.NoteStreamTail) // of an earlier attempt
	c.Unnote(messages.NoteUpstreamHeaders)
	c.Unnote(messages.NoteUpstreamError)
	body := c.Request()
	if _, text := c.RequestText(); text || len(body) == 0 || body[0] != '{' {
		return messages.NewFault(messages.InvalidRequest, "a model request is a JSON object")
	}
	asked := chat.ModelName(body)
	if !c.MayModel(asked) { // also where a stage has chosen it, or a call is made for the caller's
		return messages.NewFault(messages.Forbidden, "the key may not use model %q", asked).At("model").From("entry")
	}
	p, name, err := e.Table.Resolve(asked)
	if err != nil {
		return err
	}
	if f := e.patience.refuses(p, name); f != nil {
		c.Note(messages.NoteTargetRun, messages.TargetRun{Provider: p.Name, Model: name})
		e.report(ctx, c, name, f, 0)
		return f
	}
	begin := time.Now()
	err = e.run(ctx, p, name, c, emit)
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		e.patience.learn(p, name, f)
		e.report(ctx, c, name, f, time.Since(begin))
	} else if errors.Is(err, context.DeadlineExceeded) {
		over := messages.NewFault(messages.DeadlineExceeded,
			"provider %s had not answered when the call's time was over", p.Name)
		e.report(ctx, c, name, over, time.Since(begin))
	}
	return err
}

// run runs the model once within the times of its provider.
func (e *Endpoint) run(ctx context.Context, p Provider, model string, c *messages.Call, emit pipeline.Emit) error {
	r := &run{Endpoint: e, provider: p, call: c, emit: emit, pair: pairOf(p, model, c),
		times: p.Timeouts.or(e.Timeouts)}
	if err := r.speak(model); err != nil {
		return err
	}
	limit, key := r.times.Attempt, "attempt"
	if r.times.Total < limit {
		limit, key = r.times.Total, "total"
	}
	parent := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, limit, r.timeout("no whole reply", limit, "models.timeouts."+key)())
	defer cancel()
	do := r.do
	if r.pair.Provider == messages.EmbeddingsWire {
		do = r.embed
	}
	err := do(ctx)
	c.Note(messages.NoteTargetRun, messages.TargetRun{Provider: p.Name, Model: model, FirstMicros: r.first.Microseconds()})
	if perr := parent.Err(); err != nil && perr != nil {
		return perr // the caller's reason counts, whatever error the connection gave
	}
	return err
}

// report tells operators why a run failed, even if a standby answers in the end.
func (e *Endpoint) report(ctx context.Context, c *messages.Call, model string, f *messages.Fault, took time.Duration) {
	e.Log.WarnContext(ctx, "model run failed", "call", c.ID, "tenant", c.Tenant, "model", model, "run", c.Slip.Tries,
		"code", f.Code, "reason", f.Reason(), "ms", took.Milliseconds())
}

// prepare makes the bytes to send. They are those of the request, except that the model's name loses the provider
// prefix, and that stream is added if the caller reads a stream and the body does not ask for one.
func prepare(body []byte, model string, stream bool) ([]byte, bool) {
	if chat.ModelName(body) != model {
		body = rawjson.SetFieldString(body, "model", model)
	}
	raw, _ := rawjson.Field(body, "stream")
	if string(raw) == "true" {
		return body, true // even if the caller does not read chunks: some models only answer with a stream
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
	pair     translate.Pair
	standby  bool // on the caller's wire, but not the model that the caller named
	stream   bool
	body     []byte
	times    Timeouts
	share    *clock // runs until something was shown
	began    time.Time
	first    time.Duration // from began to the first token of a stream
}

func (r *run) do(ctx context.Context) error {
	begin := time.Now()
	r.began = begin
	ctx, clock := newClock(ctx)
	defer clock.end()
	r.share = r.hurry(ctx, clock.cancel)
	defer r.share.halt()
	wait, what, key := r.times.FirstByte, "no answer", "first-byte"
	if r.stream && r.times.FirstToken < wait {
		wait, what, key = r.times.FirstToken, "no first token", "first-token"
	}
	clock.set(wait, r.timeout(what, wait, "models.timeouts."+key))
	x := &exchange{clients: r.clients[r.provider.Name], body: r.body, header: r.header()}
	res, err := x.send(ctx, r.provider, r.pair.Provider, r.stream)
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
	if res.StatusCode/100 != 2 {
		clock.set(min(r.times.Idle, errorPatience), r.idle())
		// the status says enough, even if the body cannot be read
		b, _ := io.ReadAll(io.LimitReader(decoded(res), maxError))
		return r.refused(res, b)
	}
	if isEventStream(res.Header, r.stream) {
		left := r.times.FirstToken - time.Since(begin)
		clock.set(left, r.timeout("no first token", r.times.FirstToken, "models.timeouts.first-token"))
		return r.readStream(ctx, clock, decoded(res))
	}
	return r.readWhole(ctx, res, lively{decoded(res), clock, r.times.Idle, r.idle()})
}

func (r *run) idle() func() *messages.Fault {
	return r.timeout("no more of the reply", r.times.Idle, "models.timeouts.idle")
}

func unsent(err error, is bool) error {
	if f, ok := errors.AsType[*messages.Fault](err); ok && is {
		g := *f
		g.Unsent = true
		return &g
	}
	return err
}

// isEventStream trusts the content type; if that says nothing, it trusts what was asked for.
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

// readWhole reads a reply that came in one piece. For a streamed call, the caller's side replays it as chunks.
func (r *run) readWhole(ctx context.Context, res *http.Response, body io.Reader) error {
	b, err := readSized(body, res.ContentLength, maxReply)
	if why := ended(ctx); err != nil && why != nil {
		return why
	}
	switch {
	case errors.Is(err, chat.ErrTooLong):
		return r.badReply("its reply is longer than %d bytes", maxReply)
	case errors.Is(err, errCoding):
		return r.badReply("its reply cannot be decoded (%s)", err)
	case err != nil:
		f := messages.NewFault(messages.ProviderError, "provider %s broke the connection within its reply",
			r.provider.Name)
		return r.provider.explain(f, "broke the connection after %d bytes of its reply: %s", len(b), err)
	case !utf8.Valid(b):
		return r.badReply("its reply is not UTF-8")
	case !messages.IsJSON(b):
		f := r.badReply("its reply is not JSON")
		return r.provider.explain(f, "status=%d %s, %d bytes, not JSON; check its base-url: %s", res.StatusCode,
			orText(res.Header.Get("Content-Type"), "no content type"), len(b), r.provider.words(upstreamError{}, b))
	}
	if e, ok := rawjson.Field(b, "error"); ok && !rawjson.IsNull(e) {
		return errorFault(r.provider, res.StatusCode, res.Header, b)
	}
	if b, err = r.whole(b); err != nil {
		return err
	}
	r.call.SetReply(b)
	return nil
}

func (r *run) badReply(format string, args ...any) *messages.Fault {
	text := fmt.Sprintf(format, args...)
	f := messages.NewFault(messages.ProviderBadReply, "provider %s: %s", r.provider.Name, text)
	return r.provider.explain(f, "%s", text)
}

// header returns the headers of the request besides those that go-openai sets.
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
	r.forwarded(set)
	for key, value := range r.provider.Headers {
		set(key, value.Reveal())
	}
	return h
}

// castagnoli tells bodies of one call apart; nobody must be kept from making two that share a checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// idempotencyKey is the same for each run of one attempt, even after a crash, and differs for any other attempt, model
// or body: a provider that compares bodies must not refuse a standby or an edited request.
func (r *run) idempotencyKey() string {
	b := append(append(append(make([]byte, 0, 256), r.call.ID...), '\n'), r.provider.Name...)
	b = append(b, '\n')
	for _, f := range r.call.Slip.Frames {
		if f.Attempt > 1 && f.Stop < len(r.call.Slip.Stops) {
			b = fmt.Appendf(b, "%s %d\n", r.call.Slip.Stops[f.Stop].Name, f.Attempt)
		}
	}
	b = fmt.Appendf(b, "%d %08x\n", len(r.body), crc32.Checksum(r.body, castagnoli))
	sum := sha256.Sum256(b)
	text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])
	return "shallot-" + strings.ToLower(text)
}
