package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages"
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
		s.followChat(w, r, kept, after)
		return nil
	})
}

func (s *resumeFace) followChat(w http.ResponseWriter, r *http.Request, kept *responses.Chat, after int) {
	e, at := s.following(w, messages.ChatWire), 0
	s.follow(r, e, kept, follow{call: kept.Call, patience: abandoned, show: func(chunks [][]byte) {
		for _, c := range chunks {
			if at++; at-1 > after {
				e.id = strconv.Itoa(at - 1)
				e.send(oneLine(c))
			}
		}
	}, end: func() { e.send([]byte("[DONE]")) }})
}
