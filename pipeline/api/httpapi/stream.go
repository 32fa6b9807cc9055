package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	wires "github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// stream answers a call with server-sent events: those of OpenAI for a model, named ones for a tool. Nothing is written
// before the follower releases a chunk, so that a failure until then has its real status. [DONE] follows a success
// only; after a cut comes an error event, and the stream ends.
func (s *callRunner) stream(w http.ResponseWriter, r *http.Request, pending pipeline.Pending, req pipeline.Request) {
	var f Follower = &stream.ToolFollower{}
	switch {
	case req.Kind == messages.Tool:
	case req.Wire.Or() != messages.ChatWire:
		f = stream.NewEventFollower(req.Wire, req.Body)
	default:
		f = s.newFollower(req.Body)
	}
	s.streamWith(w, r, pending, req, f)
}

// streamWith is stream with a follower of the face's own.
func (s *callRunner) streamWith(w http.ResponseWriter, r *http.Request, pending pipeline.Pending, req pipeline.Request,
	f Follower) {
	s.streamTo(w, r, pending, req, f, nil)
}

// streamTo is streamWith for a stream that is kept, if kept is not nil. Such a one is followed to its end whether or
// not somebody reads it.
func (s *callRunner) streamTo(w http.ResponseWriter, r *http.Request, pending pipeline.Pending, req pipeline.Request,
	f Follower, kept *responses.Chat) {
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	ctx, drop := context.WithCancelCause(ctx)
	defer drop(nil)
	e := &events{w: w, rc: http.NewResponseController(w), timeout: s.writeTimeout, tool: req.Kind == messages.Tool,
		wire: req.Wire.Or()}
	q := &queue{max: s.streamBuffer, ready: make(chan struct{}, 1)}
	if kept != nil {
		e.kept = &keeping{logger: s.log, log: kept}
	} else {
		q.all = s.backlog
	}
	defer q.close()
	type end struct {
		call *messages.Call
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		c, err := pending.Wait(ctx, func(d pipeline.Delta) {
			if !q.put(f.Delta(d), d.Marks) {
				drop(errSlowReader)
				e.unblock()
			}
		})
		if c != nil && q.late(len(c.Reply())) {
			drop(errSlowReader)
			e.unblock()
		}
		ended <- end{c, err}
	}()
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-q.ready:
			chunks, marks := q.take()
			e.marks = marks
			if e.write(chunks); e.err != nil && kept == nil {
				drop(e.err) // the next turn is the end of Wait
			}
			q.written(chunks)
			beat.Reset(s.heartbeat)
		case <-beat.C:
			if e.ping(); e.err != nil && kept == nil {
				drop(e.err)
			}
		case done := <-ended: // Wait has returned: no more deltas come, and only this goroutine uses the follower
			chunks, marks := q.take()
			e.marks = marks
			e.add(chunks)
			if cause := context.Cause(ctx); e.started && e.err == nil && errors.Is(cause, errStopping) && done.err != nil {
				done.call = pending.Stop() // nil: it goes on elsewhere
			}
			if h, ok := f.(holder); ok && errors.Is(done.err, pipeline.ErrHeld) {
				done.call = h.Held(ctx)
			}
			if done.err != nil && done.call == nil {
				s.lost(e, r, pending, context.Cause(ctx), done.err)
				return
			}
			s.endStream(e, r, f, done.call)
			if e.err != nil && kept == nil {
				s.lost(e, r, pending, e.err, e.err)
			}
			return
		}
	}
}

// holder is a Follower that can say what a call waits for, as the end of its stream; nil: it cannot.
type holder interface {
	Held(ctx context.Context) *messages.Call
}

var errSlowReader = errors.New("the reader of the stream is too slow")

// endStream writes what the follower still holds, then the end.
func (s *callRunner) endStream(e *events, r *http.Request, f Follower, c *messages.Call) {
	defer e.flush()
	ended(e.w, c)
	chunks, fault := f.End(c)
	if fault == nil {
		fault = c.Fault
	}
	defer func() { e.kept.close(fault) }()
	if !e.started {
		facts(e.w.Header(), c, started(r)) // everything is known before the first byte: a replay or a failure
		if fault == nil && len(chunks) == 0 && !e.tool {
			fault = api.Refused(messages.Internal, "the reply of call %s could not be shown as a stream", c.ID)
		}
		switch {
		case fault != nil && fault == c.Fault:
			writeEnd(e.w, c)
			return
		case fault != nil:
			writeFault(e.w, fault)
			return
		}
	}
	e.add(chunks)
	if n := len(chunks); n > 0 && wires.Name(chunks[n-1]) == "response.failed" {
		return // it has said so
	}
	switch {
	case fault != nil && e.tool:
		e.event("error", errorEvent(c, fault))
		return
	case fault != nil:
		e.fail(fault)
		return
	}
	if e.tool {
		e.event("result", resultEvent(c))
		return
	}
	if e.wire == messages.ChatWire {
		e.send([]byte("[DONE]"))
	}
}

// lost ends a stream without the end of its call: the caller left or reads too slowly, the gateway stops and the call
// goes on elsewhere, or the entry failed.
func (s *callRunner) lost(e *events, r *http.Request, pending pipeline.Pending, cause, err error) {
	switch {
	case r.Context().Err() != nil: // Leave was called when it happened
	case errors.Is(cause, errSlowReader), e.err != nil:
		s.log.Warn("stream dropped: its reader is too slow", "call", pending.ID(), "err", e.err)
		pending.Leave()
		panic(http.ErrAbortHandler) // cuts the connection: a clean end would look like a whole answer
	case !e.started:
		s.notEnded(e.w, r, pending, err)
	case errors.Is(err, pipeline.ErrHeld): // by a stage further out than the tool, after a part was shown
		e.fail(api.Refused(messages.StreamCut, "the call waits for a person's decision; its answer will be at %s",
			api.ResultPath(pending.ID())))
	case errors.Is(cause, errStopping):
		e.fail(api.StoppingFault(messages.StreamCut, pending.ID()))
	default:
		s.log.Error("stream lost", "call", pending.ID(), "err", err)
		e.fail(api.Refused(messages.StreamCut, "the gateway lost the call; its answer may be at %s",
			api.ResultPath(pending.ID())))
	}
}

// events writes server-sent events. Only one goroutine may use it, except for unblock. After an error it writes
// nothing.
type events struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	tool    bool // events have names
	wire    messages.Wire
	started bool
	// marks are sent with the headers, because those of the finished call would come too late.
	marks pipeline.Marks
	err   error
	cut   atomic.Bool // nothing is written any more
	next  int         // number of the next event, where events have numbers
	id    string      // of the next event, if it has one
	kept  *keeping    // nil: the stream is not kept
	buf   []byte      // events that wait for flush
}

// eventBatch is how many bytes of events wait at most until they are written.
const eventBatch = 32 << 10

func (e *events) start() {
	e.started = true
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	e.marks.Each(func(name, value string) { setHeader(h, name, value) })
	e.w.WriteHeader(http.StatusOK)
}

// write sends each chunk as an event. Those that come together go out together, because a write costs more than an
// event.
func (e *events) write(chunks [][]byte) {
	e.add(chunks)
	e.flush()
}

// add is write, but what it wrote last may wait for flush.
func (e *events) add(chunks [][]byte) {
	if len(chunks) > 0 {
		e.kept.add(chunks)
	}
	for _, c := range chunks {
		if e.tool {
			e.put(toolEvent(c))
			continue
		}
		e.id = e.kept.next()
		if e.wire == messages.ChatWire {
			e.put("", oneLine(c)) // its chunks have neither names nor numbers
			continue
		}
		e.put(wires.Name(c), oneLine(c))
		if n := responses.Number(c); n >= 0 {
			e.next = n + 1
		}
	}
}

func (e *events) send(data []byte) { e.event("", data) }

// event sends one event, after those that wait.
func (e *events) event(name string, data []byte) {
	e.put(name, data)
	e.flush()
}

func (e *events) put(name string, data []byte) {
	if e.id != "" {
		e.buf = append(append(append(e.buf, "id: "...), e.id...), '\n')
		e.id = ""
	}
	if name != "" {
		e.buf = append(append(append(e.buf, "event: "...), name...), '\n')
	}
	e.buf = append(e.buf, "data: "...)
	e.buf = append(append(e.buf, data...), "\n\n"...)
	if !e.started && e.err == nil {
		e.start()
	}
	if len(e.buf) >= eventBatch {
		e.flush()
	}
}

// ping keeps proxies from closing an idle stream. Before the first chunk there is no stream to keep open.
func (e *events) ping() {
	if e.started {
		e.raw(": ping\n\n")
	}
}

func (e *events) fail(f *messages.Fault) {
	name := ""
	if e.tool || e.wire != messages.ChatWire {
		name = "error"
	}
	if e.wire == messages.ResponsesWire {
		e.event(name, responses.ErrorEvent(f, e.next))
		return
	}
	e.event(name, oneLine(shapeOf(e.w)(f, e.w.Header().Get("X-Request-Id"))))
}

// raw sends an event, or a comment, as it is.
func (e *events) raw(text string) {
	e.buf = append(e.buf, text...)
	e.flush()
}

// flush writes the events that wait in one write, within the time that the reader has for it.
func (e *events) flush() {
	b := e.buf
	e.buf = b[:0]
	if len(b) == 0 || e.err != nil {
		return
	}
	if !e.started {
		e.start()
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.timeout))
	if e.cut.Load() { // the deadline that unblock has set is gone
		e.err = os.ErrDeadlineExceeded
		return
	}
	if _, e.err = e.w.Write(b); e.err == nil {
		e.err = e.rc.Flush()
	}
	if errors.Is(e.err, http.ErrNotSupported) {
		e.err = nil
	}
}

// unblock ends a write that hangs, and all further ones. It may be called from another goroutine.
func (e *events) unblock() {
	e.cut.Store(true)
	_ = e.rc.SetWriteDeadline(time.Unix(1, 0))
}

// oneLine makes a chunk fit into one data line: a line break in JSON is only white space.
func oneLine(chunk []byte) []byte {
	if !bytes.ContainsAny(chunk, "\r\n") {
		return chunk
	}
	var out bytes.Buffer
	if json.Compact(&out, chunk) == nil {
		return out.Bytes()
	}
	return bytes.Map(func(r rune) rune {
		if r == '\r' || r == '\n' {
			return ' '
		}
		return r
	}, chunk)
}

// queue holds released chunks between the call and its reader, so that a slow reader does not delay the bus. It is
// bounded in bytes.
type queue struct {
	mu    sync.Mutex
	size  int
	max   int
	items [][]byte
	ready chan struct{}
	begun bool
	marks pipeline.Marks // of the source of the first chunk
	all   *backlog       // of all streams; nil: not counted
	held  int            // what of it is this stream's: from put until written
}

// put reports whether there was room. The marks of the first chunks are those of the stream.
func (q *queue) put(chunks [][]byte, marks pipeline.Marks) bool {
	if len(chunks) == 0 {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.begun {
		q.begun, q.marks = true, marks
	}
	waiting := len(q.items) > 0
	for _, c := range chunks {
		q.size += len(c)
	}
	crowded := q.hold(cost(chunks))
	if waiting && (q.size > q.max || crowded) { // a single large chunk does not mean that the reader is slow
		return false
	}
	q.items = append(q.items, chunks...)
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return true
}

// take returns the chunks that wait, and the stream's marks.
func (q *queue) take() ([][]byte, pipeline.Marks) {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.items
	q.items, q.size = nil, 0
	return out, q.marks
}
