package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// ToolStages are the stages that one tool names for itself, by name or alias. The mandatory ones get orders 1 to 9 in
// the order written, outside all stages that may answer; the optional ones get 51 to 59, next to the tool. They are on
// the route of the tool's calls whether their switch is on or off; a stage that is on the route of all calls anyway is
// moved, not doubled. A stage of the tiers fixed and mandatory keeps its place.
type ToolStages struct {
	Mandatory []string
	Optional  []string
	// Demand names the on-demand stages ([Stage.OnDemand]) that the call must pass, at their usual place; a tool that
	// names one in its lists demands it too.
	Demand []string
}

// demands reports whether the call must pass an on-demand stage.
func (o ToolStages) demands(s *Managed) bool {
	return slices.ContainsFunc(slices.Concat(o.Demand, o.Mandatory, o.Optional), s.named)
}

// Empty reports whether the tool names no stages.
func (o ToolStages) Empty() bool { return len(o.Mandatory)+len(o.Optional) == 0 }

// The orders of a tool's own stages.
const (
	firstToolMandatory = 1
	firstToolOptional  = 51
	maxToolStages      = 9
)

type toolPlace struct {
	order int
	tier  Tier
}

// places finds the stages that the lists name. The error is a fault misconfigured that names them all.
func (m *Manager) places(kind messages.Kind, o ToolStages) (map[string]toolPlace, error) {
	if o.Empty() {
		return nil, nil
	}
	stages := m.Stages(kind)
	out := map[string]toolPlace{}
	var faults []error
	place := func(list string, given []string, first int, tier Tier) {
		if len(given) > maxToolStages {
			faults = append(faults, fmt.Errorf("stages.%s: %d stages; at most %d", list, len(given), maxToolStages))
			return
		}
		for i, name := range given {
			at := slices.IndexFunc(stages, func(s *Managed) bool { return s.named(name) })
			switch {
			case at < 0:
				faults = append(faults, fmt.Errorf("stages.%s: there is no %s stage %q; known: %s", list, kind, name,
					strings.Join(names(stages), ", ")))
				continue
			case stages[at].Tier != Optional:
				continue
			}
			own := stages[at].Name
			if _, twice := out[own]; twice {
				faults = append(faults, fmt.Errorf("stages.%s: %q is named twice", list, name))
				continue
			}
			out[own] = toolPlace{first + i, tier}
		}
	}
	place("mandatory", o.Mandatory, firstToolMandatory, Mandatory)
	place("optional", o.Optional, firstToolOptional, Optional)
	if err := errors.Join(faults...); err != nil {
		return nil, messages.NewFault(messages.Misconfigured, "%s", strings.ReplaceAll(err.Error(), "\n",
			"; ")).From("entry")
	}
	return out, nil
}

// CheckToolStages checks the lists of a tool. The error is the fault misconfigured if a list names an unknown stage,
// one stage twice or more than nine stages, or if the route checker refuses the order.
func (m *Manager) CheckToolStages(kind messages.Kind, o ToolStages) error {
	own, err := m.places(kind, o)
	if err != nil || len(own) == 0 {
		return err
	}
	usual := func(s *Managed) bool { return s.Kind == kind && s.Enabled() }
	was := map[string]bool{}
	var before, after []Stage
	for _, s := range m.snapshot().all {
		if usual(s) {
			before = append(before, s.Stage)
		}
		if p, ok := own[s.Name]; ok && s.Kind == kind {
			moved := s.Stage
			moved.Order, moved.Tier = p.order, p.tier
			after = append(after, moved)
		} else if usual(s) {
			after = append(after, s.Stage)
		}
	}
	for _, f := range CheckRoute(before) {
		was[f.Rule+strings.Join(f.Stages, ",")] = true
	}
	var faults []string
	for _, f := range CheckRoute(after) {
		if f.Level == LevelError && !was[f.Rule+strings.Join(f.Stages, ",")] {
			faults = append(faults, f.Text)
		}
	}
	if len(faults) > 0 {
		return messages.NewFault(messages.Misconfigured, "stages: %s", strings.Join(faults, "; ")).From("entry")
	}
	return nil
}

// stop returns the slip's entry for a stage that the tool names.
func (p toolPlace) stop(s *Managed) messages.Stop {
	moved := s.Stage
	moved.Order, moved.Tier = p.order, p.tier
	return moved.Stop()
}

// sortStops sorts stops by order; stops of equal order keep the order of registration.
func sortStops(stops []messages.Stop) {
	slices.SortStableFunc(stops, func(a, b messages.Stop) int { return cmp.Compare(a.Order, b.Order) })
}
