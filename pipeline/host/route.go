package host

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// checkRoute refuses to start on a chain whose order is wrong, and says what may be wrong (contracts 24).
func (h *Host) checkRoute(l *config.Loaded) error {
	for _, f := range h.Manager.Check() {
		if f.Level != pipeline.LevelError {
			h.log.Warn("route", "rule", f.Rule, "kind", f.Type, "stages", f.Stages, "text", f.Text)
		}
	}
	return routeErrors(h.Manager, l)
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

// CheckChains judges the chains that a configuration makes, and the stages that its tools name, without starting anything.
// Stages of a program that embeds the host are not known here.
func CheckChains(l *config.Loaded) error {
	h := &Host{Config: l.Config, Manager: &pipeline.Manager{}, log: slog.New(slog.DiscardHandler)}
	parser := &args.Parser{}
	deps := stages.Deps{
		Tools: tool.NewRegistry(&pipeline.Memory{}, parser, h.log), Parser: parser,
		Explicit: l.Explicit, Texts: l.Texts, Fallback: h.fallbackRules(), Section: func(name string) any { return l.Sections[name] },
		Arguments: args.Options{Coercion: l.Tool.Arguments.Coercion, IntegerBits: l.Tool.Arguments.IntegerBits},
		Store:     func(string) pipeline.Store { return &pipeline.Memory{} },
	}
	var faults []error
	for _, spec := range stages.All() {
		s, on, err := spec.Make(l.Sections[spec.Name], deps)
		if err == nil {
			err = h.Manager.Register(s, on)
		}
		faults = append(faults, err)
	}
	for _, s := range l.Config.Stages {
		faults = append(faults, h.Manager.Register(h.remoteStage(s), s.Enabled))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	faults = append(faults, routeErrors(h.Manager, l))
	for i, t := range l.Tool.Tools {
		o := pipeline.ToolStages{Mandatory: t.Stages.Mandatory, Optional: t.Stages.Optional}
		if err := h.Manager.CheckToolStages(messages.Tool, o); err != nil {
			faults = append(faults, fmt.Errorf("%s: tool.tools[%d] (%s): %w", l.Where(fmt.Sprintf("tool.tools[%d].stages", i)), i, t.Name, err))
		}
	}
	return errors.Join(faults...)
}
