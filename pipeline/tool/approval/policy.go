// Package approval is the engine of approvals: which call of a tool needs a person's yes, what may be decided, and the
// grant that binds a yes to one call with its arguments. It knows neither stages nor transports: the stage `approval`
// asks, the bus keeps the question, the faces carry the decision, and the target checks every call's grant.
package approval

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Policy says which calls wait for a person. The key of the list is agent.interceptor.approval.policies.
type Policy struct {
	// Name is what a tool's own approval refers to.
	Name string `yaml:"name" json:"name,omitempty" doc:"What a tool's own approval refers to, and people read."`
	// Tool may be a pattern with *.
	Tool string `yaml:"tool" json:"tool,omitempty" doc:"Tool's name, or a pattern with *; none: only tools that name it."`
	// When is a predicate over args, tool and the call.
	When string `yaml:"when" json:"when,omitempty" doc:"Predicate over args, tool and the call; none: always."`
	// Decisions lists them.
	Decisions []string `yaml:"decisions" json:"decisions,omitempty" doc:"Of approve, edit, reject, respond; none: all."`
	// Expires is how long a call waits.
	Expires time.Duration `yaml:"expires" json:"expires,omitempty" doc:"How long a call waits undecided; at least 1s."`
}

// SetDefaults fills a new policy before the keys of a file are read into it.
func (p *Policy) SetDefaults() { p.Expires = expires }

// The values of a tool's own approval that do not name a policy.
const (
	Always = "always"
	None   = "none"
)

// expires is how long a question waits if its policy does not say.
const expires = 72 * time.Hour

// Policies are compiled policies. They do not change and are safe for concurrent use. A nil *Policies has none.
type Policies struct {
	list []policy
}

type policy struct {
	Policy
	when *predicate // nil: always
}

// Compile checks the policies. The error names each policy with what is wrong, and where in its predicate.
func Compile(list []Policy) (*Policies, error) {
	out := &Policies{}
	var faults []error
	names := map[string]bool{}
	for i, p := range list {
		at := fmt.Sprintf("policies[%d]", i)
		if label := p.label(); label != "" {
			at += " (" + label + ")"
		}
		bad := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s: "+format, append([]any{at}, args...)...))
		}
		if p.Name == "" && p.Tool == "" {
			bad("give it a tool, or a name that tools refer to")
		}
		if p.Name == Always || p.Name == None {
			bad("name: %q has a meaning of its own in a tool's approval; choose another name", p.Name)
		}
		if p.Name != "" && names[p.Name] {
			bad("name: another policy has that name")
		}
		names[p.Name] = true
		if err := messages.CheckGlob(p.Tool); p.Tool != "" && err != nil {
			bad("tool: %v", err)
		}
		for _, d := range p.Decisions {
			if !slices.Contains(decisions, d) {
				bad("decisions: %q; known: %s", d, strings.Join(decisions, ", "))
			}
		}
		if len(p.Decisions) == 0 {
			p.Decisions = decisions
		}
		switch {
		case p.Expires == 0:
			p.Expires = expires
		case p.Expires < time.Second:
			bad("expires: %s; at least 1s", p.Expires)
		}
		c := policy{Policy: p}
		if strings.TrimSpace(p.When) != "" {
			var err error
			if c.when, err = compile(p.When); err != nil {
				bad("when: %v", err)
			}
		}
		out.list = append(out.list, c)
	}
	return out, errors.Join(faults...)
}

// label is the policy's name, else its tool.
func (p Policy) label() string {
	if p.Name != "" {
		return p.Name
	}
	return p.Tool
}

// fits reports whether the policy applies to the tool. A tool in the operator's own file that says none is exempt from
// patterns, but not from a policy with its name; a tool from elsewhere cannot exempt itself.
func (p Policy) fits(d *tool.Definition) bool {
	switch {
	case p.Name != "" && d.Approval == p.Name, p.Tool == d.Name:
		return true
	case p.Tool == "" || d.Approval == None && d.Source == tool.Operator:
		return false
	}
	return messages.Glob(p.Tool, d.Name)
}

// Known reports whether a tool's own approval is empty, always, none, or the name of a policy.
func (p *Policies) Known(approval string) bool {
	if approval == "" || approval == Always || approval == None {
		return true
	}
	return p != nil && slices.ContainsFunc(p.list, func(q policy) bool { return q.Name == approval })
}

// Concern reports whether a call of the tool may have to wait. Then it must pass the stage, and the target asks for its
// grant.
func (p *Policies) Concern(d *tool.Definition) bool {
	return d.NeedsApproval() || p != nil && slices.ContainsFunc(p.list, func(q policy) bool { return q.fits(d) })
}

// EditedQuestion checks a call whose arguments a person has changed against all policies. The first policy that holds
// now, but did not hold for what the person was shown, asks; nil: the decision covers the call. The two calls differ
// only in their arguments.
func (p *Policies) EditedQuestion(d *tool.Definition, shown, edited *messages.Call) *Question {
	if p == nil {
		return nil
	}
	for _, q := range p.list {
		if out := q.question(d, edited); out != nil && q.question(d, shown) == nil {
			return out
		}
	}
	return nil
}

// question is what the policy asks about the call; nil if nothing.
func (q policy) question(d *tool.Definition, c *messages.Call) *Question {
	if !q.fits(d) {
		return nil
	}
	holds, err := q.when.holds(d, c)
	if !holds && err == nil {
		return nil
	}
	out := newQuestion(q.Policy, d, c)
	if err != nil {
		out.Note = fmt.Sprintf("asked because the predicate could not be evaluated: %v", err)
	}
	return out
}

// Question decides whether the call waits and what is asked then; nil: it does not wait. The first policy that fits and
// whose predicate holds asks. To be safe, a predicate that cannot be evaluated holds, and a tool that names a policy
// that does not exist is asked about.
func (p *Policies) Question(d *tool.Definition, c *messages.Call) *Question {
	if p != nil {
		for _, q := range p.list {
			if out := q.question(d, c); out != nil {
				return out
			}
		}
	}
	if d.Approval == Always {
		return newQuestion(Policy{Name: Always, Decisions: decisions, Expires: expires}, d, c)
	}
	if !p.Known(d.Approval) {
		out := newQuestion(Policy{Name: d.Approval, Decisions: decisions, Expires: expires}, d, c)
		out.Note = fmt.Sprintf("asked because there is no policy %q here", d.Approval)
		return out
	}
	return nil
}
