package host

import "github.com/shallot-nats/shallot/pipeline/api/responses"

// Responses are what the Responses API keeps: for 30 days, and visible to all processes at once.
func (h *Host) Responses() *responses.Kept { return responses.New(h.responses, h.Entry()) }
