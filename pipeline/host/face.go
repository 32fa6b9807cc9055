package host

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline"
)

// Entry is where calls enter.
func (h *Host) Entry() pipeline.Entry { return entry{h.Node, h} }

// Control is the operator's side.
func (h *Host) Control() pipeline.Control { return recorded{h.Node, h} }

// ModelInfo is a model that a provider serves.
type ModelInfo struct {
	ID      string
	Created int64 // Unix seconds
	Owner   string
}

// ListModels lists what the providers say that they serve, and the exact names of the configuration. A provider that
// does not answer is left out and logged.
func (h *Host) ListModels(ctx context.Context) []ModelInfo {
	listed, errs := h.Models.Models(ctx)
	for provider, err := range errs {
		h.log.Warn("a provider does not list its models", "provider", provider, "err", err)
	}
	out := make([]ModelInfo, 0, len(listed))
	for _, m := range listed {
		out = append(out, ModelInfo{ID: m.ID, Created: m.Created, Owner: m.OwnedBy})
	}
	return append(out, h.agents.models()...)
}

// Check is one line of readiness.
type Check struct {
	Name   string
	OK     bool
	Reason string // why not, or what is worth knowing
}

// Ready checks what this process needs to serve: the connection, and streams that answer.
func (h *Host) Ready(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	nc := Check{Name: "nats", OK: h.Conn.IsConnected()}
	if !nc.OK {
		nc.Reason = fmt.Sprintf("the connection to %s is %s", h.URL, h.Conn.Status())
	}
	js := Check{Name: "jetstream", OK: true}
	if _, err := h.publisher.AccountInfo(ctx); err != nil {
		js.OK, js.Reason = false, err.Error()
	}
	work := Check{Name: "stages", OK: h.Conn.Status() != nats.CLOSED}
	return []Check{nc, js, work, h.trail.check()}
}
