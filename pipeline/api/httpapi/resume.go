package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// This file resumes the stream of a stored chat call.

// keeping keeps the chunks of a stream before they are written. A nil one keeps nothing. When the store does not
// answer, or another gateway has taken the stream for that of a dead one, the stream goes on without ids.
type keeping struct {
	logger  *slog.Logger
	log     *responses.Chat
	failed  bool
	written int // chunks in the log
	shown   int // chunks that have got their id
}

func (k *keeping) add(chunks [][]byte) {
	if k == nil || k.failed {
		return
	}
	k.do(func(ctx context.Context) error { return k.log.Add(ctx, chunks) })
	if !k.failed {
		k.written += len(chunks)
	}
}

func (k *keeping) close(f *messages.Fault) {
	if k != nil && !k.failed {
		k.do(func(ctx context.Context) error { return k.log.Close(ctx, f) })
	}
}

func (k *keeping) do(f func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), saveTime)
	defer cancel()
	if err := f(ctx); err != nil {
		k.failed = true
		k.logger.Warn("a stream is not kept from here on", "call", k.log.Call, "err", err)
	}
}

// next is the id of the next chunk; empty if it has none.
func (k *keeping) next() string {
	if k == nil || k.shown >= k.written {
		return ""
	}
	k.shown++
	return strconv.Itoa(k.shown - 1)
}

// resumeFace serves the streams of stored chat calls again.
type resumeFace struct {
	*callRunner
	kept *responses.Kept // nil: streams are not kept
}

func (s *resumeFace) add(t *router) {
	if s.kept != nil {
		t.add("/v1/results/{call}/events", methods{http.MethodGet: s.caller(s.resume)})
	}
}

// resume is GET /v1/results/{call}/events: the chunks of a stored chat stream after the one that Last-Event-ID or
// ?after= names, those that were sent and those to come, each once.
func (s *resumeFace) resume(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		call := r.PathValue("call")
		if uuid.Validate(call) != nil || len(call) != 36 {
			return api.Refused(messages.NotFound, "no call %q", messages.Clip(call, 100))
		}
		text := r.Header.Get("Last-Event-ID")
		if text == "" {
			text = r.URL.Query().Get("after")
		}
		after := -1
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			after = n
		} else if text != "" {
			return api.Invalid("after", "after must be the id of a chunk, such as 17")
		}
		kept, err := s.kept.Chat(r.Context(), o, call)
		if err != nil {
			return err
		}
		setHeader(w.Header(), "Shallot-Call", call)
		s.followChat(w, r, o, kept, after)
		return nil
	})
}

// abandoned is after how many pauses the log of a call that has ended is taken for that of a gateway that has died.
const abandoned = 20

func (s *resumeFace) followChat(w http.ResponseWriter, r *http.Request, o responses.Owner, kept *responses.Chat,
	after int) {
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	e := &events{w: w, rc: http.NewResponseController(w), timeout: s.writeTimeout, wire: messages.ChatWire}
	e.raw(": following\n\n")
	beat, pause := time.NewTicker(s.heartbeat), time.NewTicker(followPause)
	defer beat.Stop()
	defer pause.Stop()
	at, idle := 0, 0
	for n := 0; e.err == nil; {
		chunks, last, fault, err := kept.Next(ctx, n)
		switch {
		case err == nil:
			for _, c := range chunks {
				if at++; at-1 > after {
					e.id = strconv.Itoa(at - 1)
					e.send(oneLine(c))
				}
			}
			if n, idle = n+1, 0; !last {
				continue
			}
			if fault != nil {
				e.fail(fault)
				return
			}
			e.send([]byte("[DONE]"))
			return
		case !errors.Is(err, pipeline.ErrNotFound) && ctx.Err() == nil:
			e.fail(api.Refused(messages.StreamCut, "the gateway lost the stream; ask again after the last chunk"))
			return
		}
		select {
		case <-pause.C:
			if idle++; idle%abandoned == 0 {
				s.takeOver(ctx, o, kept)
			}
		case <-beat.C:
			e.ping()
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errStopping) {
				e.fail(api.StoppingFault(messages.StreamCut, kept.Call))
			}
			return
		}
	}
}

// takeOver ends a log that its gateway left, if its call has ended.
func (s *resumeFace) takeOver(ctx context.Context, o responses.Owner, kept *responses.Chat) {
	look, cancel := context.WithTimeout(ctx, followPause)
	c, err := s.entry.Result(look, o.Tenant, kept.Call)
	cancel()
	if f, ok := errors.AsType[*messages.Fault](err); c == nil && ok && f.Code == messages.NotFound {
		c = messages.NewCall(messages.Model, o.Tenant, nil)
		c.Fail(f)
	}
	if c == nil {
		return // it runs, waits for a person, or cannot be asked for now
	}
	if err := kept.Finish(ctx, c); err != nil && ctx.Err() == nil {
		s.log.Warn("the end of a stream is not kept yet", "call", kept.Call, "err", err)
	}
}
