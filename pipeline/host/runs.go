package host

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/stages"
)

// times are the times of a run of a model, for every provider that has none of its own.
func times(t config.ModelTimeouts) model.Timeouts {
	return model.Timeouts{
		Connect: t.Connect, FirstByte: t.FirstByte, FirstToken: t.FirstToken, Idle: t.Idle,
		FirstTokenHold: t.FirstTokenHold, Attempt: t.Attempt, Total: t.Total,
	}
}

func providerTimes(t config.ProviderTimeouts) model.Timeouts {
	return model.Timeouts{
		Connect: t.Connect, FirstByte: t.FirstByte, FirstToken: t.FirstToken, Idle: t.Idle,
		FirstTokenHold: t.FirstTokenHold, Attempt: t.Attempt,
	}
}

// maxRuns bounds the runs of targets of one call.
func maxRuns(l *config.Loaded) map[messages.Kind]int {
	c, ok := l.Sections["model-fallback"].(*stages.ModelFallbackConfig)
	if !ok {
		return nil
	}
	return map[messages.Kind]int{messages.Model: c.MaxTargetRuns}
}

// standbys is how many other models the stages that the call is inside could still turn to.
func (h *Host) standbys(c *messages.Call) (n int) {
	for _, f := range c.Slip.Frames {
		if f.Stop < 0 || f.Stop >= len(c.Slip.Stops) {
			continue
		}
		if s, ok := h.Manager.Get(messages.Model, c.Slip.Stops[f.Stop].Name); ok && s.Standbys != nil {
			n += s.Standbys(c)
		}
	}
	return n
}
