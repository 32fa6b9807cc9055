package host

import (
	"context"

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
