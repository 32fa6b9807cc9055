package host

import (
	"errors"

	"github.com/shallot-nats/shallot/pipeline"
)

// checkRoute refuses to start on a chain whose order is wrong, and says what may be wrong (contracts 24).
func (h *Host) checkRoute() error {
	var wrong []error
	for _, f := range h.Manager.Check() {
		if f.Level == pipeline.LevelError {
			wrong = append(wrong, errors.New(f.String()))
			continue
		}
		h.log.Warn("route", "rule", f.Rule, "kind", f.Type, "stages", f.Stages, "text", f.Text)
	}
	return errors.Join(wrong...)
}
