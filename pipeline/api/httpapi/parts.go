package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// This file has what the parts of the server share. A part is a face for callers or a control surface. It holds what it
// needs and keeps no state, so each listener has its own.

// common is what every part needs: who asks, how a body is read, and the log.
type common struct {
	guard
	bodies api.BodyReader
	log    *slog.Logger
}

// bounds are those on how long a handler waits and writes.
type bounds struct {
	halted       context.Context // Server.Halted
	writeTimeout time.Duration
	heartbeat    time.Duration
}

// callRunner makes the calls of all faces, and answers with their ends.
type callRunner struct {
	*common
	bounds
	entry        pipeline.Entry
	newFollower  func(request []byte) Follower
	streamBuffer int
	backlog      *backlog // of all streams of the server
}

func (s *Server) common() *common {
	return &common{
		guard: guard{addr: s.Addr, origins: s.AllowedOrigins, insecureOpen: s.InsecureOpen, embedded: s.Embedded,
			keys: s.Keys, cross: s.cross, hosts: s.hosts},
		bodies: api.BodyReader{Limit: s.BodyLimit, Timeout: s.BodyTimeout},
		log:    s.Log,
	}
}

func (s *Server) bounds() bounds {
	return bounds{halted: s.Halted, writeTimeout: s.WriteTimeout, heartbeat: s.Heartbeat}
}

func (s *Server) callRunner(c *common) *callRunner {
	return &callRunner{common: c, bounds: s.bounds(), entry: s.Entry, newFollower: s.NewFollower,
		streamBuffer: s.StreamBuffer, backlog: &s.backlog}
}

// controlBody reads the JSON object of a control request.
func (s *common) controlBody(w http.ResponseWriter, r *http.Request) ([]byte, *messages.Fault) {
	body, fault := s.bodies.Read(w, r)
	if fault == nil {
		fault = api.ControlBody(body)
	}
	return body, fault
}

var errStopping = errors.New("the gateway is stopping")

// untilHalt is a ctx that also ends when the grace of a stopping gateway is over.
func (s *bounds) untilHalt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.halted, func() { cancel(errStopping) })
	return ctx, func() { stop(); cancel(nil) }
}
