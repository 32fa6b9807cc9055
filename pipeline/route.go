package pipeline

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// Role says what a stage does, for rules of the route checker about the place of one stage relative to another. Most
// stages have none.
type Role string

// The roles that the rules know.
const (
	RoleCache     Role = "cache"     // answers from stored replies
	RoleRedact    Role = "redact"    // takes personal data out
	RoleEvict     Role = "evict"     // replaces large results
	RoleApprove   Role = "approve"   // decides on arguments
	RoleArguments Role = "arguments" // makes the arguments what the tool will get
	RoleRetry     Role = "retry"     // says Again for the same target
	RoleFallback  Role = "fallback"  // says Again for another target, or degrades
)

// Levels of a Finding.
const (
	LevelError   = "error"   // the process does not start
	LevelWarning = "warning" // it starts and says so
)

// Finding is one thing that is wrong, or may be wrong, with the order of a chain.
type Finding struct {
	Rule   string        `json:"rule"`
	Level  string        `json:"level"`
	Type   messages.Kind `json:"type"`
	Stages []string      `json:"stages"`
	Text   string        `json:"text"` // what is wrong, why, and what to do
}

// String returns the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s chain, rule %s: %s", f.Type, f.Rule, f.Text)
}

// CheckRoute judges the chains that the stages make, by what the stages declare. The stages must be in registration
// order, which breaks ties of order; the caller leaves out those that are off. Findings come in the order of the rules,
// errors and warnings mixed.
func CheckRoute(stages []Stage) []Finding {
	out := []Finding{}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		var chain []Stage
		for _, s := range stages {
			if s.of(kind) {
				chain = append(chain, s)
			}
		}
		sort.SliceStable(chain, func(i, j int) bool { return chain[i].Order < chain[j].Order })
		c := routeCheck{kind: kind}
		for i, outer := range chain {
			for _, inner := range chain[i+1:] {
				if meet(outer, inner) {
					c.pair(outer, inner)
				}
			}
		}
		for _, s := range chain {
			c.alone(s)
		}
		out = append(out, c.found...)
	}
	return out
}

// meet reports whether a call can have both stages on its route.
func meet(a, b Stage) bool {
	if len(a.ApplyTo) == 0 || len(b.ApplyTo) == 0 {
		return true
	}
	return slices.ContainsFunc(a.ApplyTo, func(class string) bool { return slices.Contains(b.ApplyTo, class) })
}

type routeCheck struct {
	kind  messages.Kind
	found []Finding
}

func (c *routeCheck) add(rule, level string, stages []Stage, format string, args ...any) {
	f := Finding{Rule: rule, Level: level, Type: c.kind, Text: fmt.Sprintf(format, args...)}
	for _, s := range stages {
		f.Stages = append(f.Stages, s.Name)
	}
	c.found = append(c.found, f)
}

// pair judges two stages, the first outer to the second.
func (c *routeCheck) pair(outer, inner Stage) {
	both := []Stage{outer, inner}
	o, i := at(outer), at(inner)
	switch {
	case outer.Role == RoleCache && inner.Role == RoleRedact && writesPart(inner, "request"):
		c.add("cache-outer-to-pii", LevelError, both,
			"%s is outer to %s, so it keys and stores what has not been redacted; give the cache an order above %d",
			o, i, inner.Order)
	case outer.Role == RoleEvict && inner.Role == RoleCache:
		c.add("eviction-not-inner-to-cache", LevelError, both,
			"%s is outer to %s, so the cache stores whole results and each hit is evicted again; give the "+
				"eviction an order of %d or more, registered after the cache", o, i, inner.Order)
	case outer.Role == RoleApprove && inner.Role == RoleArguments:
		c.add("approval-outer-to-arguments", LevelError, both,
			"%s is outer to %s, so people approve arguments that are changed afterwards; give the approval an "+
				"order above %d", o, i, inner.Order)
	case outer.Role == RoleRetry && inner.Role == RoleFallback:
		c.add("retry-outer-to-fallback", LevelWarning, both,
			"%s is outer to %s, so each new attempt tries every standby again; give the retry an order above %d", o,
			i, inner.Order)
	}
	if inner.Tier == Mandatory && outer.Tier != Mandatory && outer.Before != nil {
		c.add("mandatory-inner-to-optional", LevelError, both,
			"%s is %s and may Answer or Stop before the mandatory %s has seen the call; mandatory stages come first",
			o, outer.Tier, i)
	}
	if outer.Order == inner.Order {
		if field, ok := bothWrite(outer, inner); ok {
			c.add("two-writers", LevelError, both,
				"%s and %s share an order and both write %s, so only the order of registration decides what it "+
					"holds; give each an order of its own", o, i, field)
		}
	}
	for _, t := range outer.Tools {
		if slices.ContainsFunc(inner.Tools, func(u Tool) bool { return u.Name == t.Name }) {
			c.add("one-tool-twice", LevelError, both, "%s and %s both contribute the tool %q; rename one, or "+
				"switch one of them off", o, i, t.Name)
		}
	}
}

// alone judges one stage by itself.
func (c *routeCheck) alone(s Stage) {
	rewrites := s.rewrites() || s.After != nil && slices.Contains(s.Writes, "reply.text")
	if c.kind != messages.Agent && rewrites && s.Filter == nil {
		c.add("no-chunk-filter", LevelWarning, []Stage{s},
			"%s rewrites replies and has no chunk filter, so streamed replies are held back until they are whole",
			at(s))
	}
	bare := len(s.ApplyTo) == 0 || slices.Contains(s.ApplyTo, ApplyBare)
	if c.kind == messages.Model && bare && s.Before != nil &&
		writesPart(s, "request") {
		c.add("edits-every-request", LevelWarning, []Stage{s},
			"%s edits the requests of all callers, also of clients that ask gateways to leave them as they are, such "+
				"as Claude Code; apply-to says whose it edits", at(s))
	}
}

func at(s Stage) string { return fmt.Sprintf("%s (%d)", s.Name, s.Order) }

// writesPart reports whether the stage writes a field or a part of it.
func writesPart(s Stage, field string) bool {
	return slices.ContainsFunc(s.Writes, func(w string) bool { return within(w, field) })
}

// within reports whether field equals whole or is a part of it: request.messages is within request.
func within(field, whole string) bool {
	return field == whole || strings.HasPrefix(field, whole+".")
}

// bothWrite finds a field that both stages write in the same phase. A stage that writes the reply only to answer does
// not edit it in its after, and no inner stage sees its answer. So a cache and a stage that edits results may share an
// order.
func bothWrite(a, b Stage) (field string, ok bool) {
	for _, v := range a.Writes {
		for _, w := range b.Writes {
			if !within(v, w) && !within(w, v) {
				continue
			}
			if isReply(v) && (a.Role == RoleCache || b.Role == RoleCache || a.After == nil || b.After == nil) {
				continue
			}
			if len(v) > len(w) {
				return v, true
			}
			return w, true
		}
	}
	return "", false
}

func isReply(field string) bool { return within(field, "reply") || within(field, "result") }

// Check judges the chains of the stages that are registered. Findings about a stage that is off are warnings, whatever
// their level: they apply once the stage is switched on.
func (m *Manager) Check() []Finding { return checkManaged(m.Stages("")) }

func checkManaged(stages []*Managed) []Finding {
	var on, all []Stage
	for _, s := range stages {
		all = append(all, s.Stage)
		if s.Enabled() {
			on = append(on, s.Stage)
		}
	}
	out := CheckRoute(on)
	for _, f := range CheckRoute(all) {
		if !slices.ContainsFunc(out, func(o Finding) bool { return o.Type == f.Type && o.String() == f.String() }) &&
			f.Level == LevelError {
			f.Level, f.Text = LevelWarning, "if it is switched on: "+f.Text
			out = append(out, f)
		}
	}
	return out
}
