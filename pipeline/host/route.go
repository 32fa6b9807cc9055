package host

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// checkRoute refuses to start on a chain whose order is wrong, and says what may be wrong.
func checkRoute(m *pipeline.Manager, l *config.Loaded, log *slog.Logger) error {
	for _, f := range m.Check() {
		if f.Level != pipeline.LevelError {
			log.Warn("route", "rule", f.Rule, "kind", f.Type, "stages", f.Stages, "text", f.Text)
		}
	}
	return routeErrors(m, l)
}

// routeErrors are the findings on which nothing starts, each with the places of the remote stages that it is about.
func routeErrors(m *pipeline.Manager, l *config.Loaded) error {
	var wrong []error
	for _, f := range m.Check() {
		if f.Level != pipeline.LevelError {
			continue
		}
		text := f.String()
		for i, s := range l.Config.Stages {
			if s.Kind == string(f.Type) && slices.Contains(f.Stages, s.Name) {
				text += fmt.Sprintf(" (%s: stages[%d])", l.Where(fmt.Sprintf("stages[%d]", i)), i)
			}
		}
		wrong = append(wrong, errors.New(text))
	}
	return errors.Join(wrong...)
}
