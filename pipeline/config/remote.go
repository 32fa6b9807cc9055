package config

import (
	"fmt"
	"slices"
	"strings"
)

// remote checks the entries of stages.
func (c *checker) remote(cfg *Config) {
	var names []string
	for i, s := range cfg.Stages {
		at := fmt.Sprintf("stages[%d]", i)
		if s.Name != "" {
			names = c.unique(names, s.Kind+" stage "+s.Name, at+".name")
		}
		if slices.Contains(c.stages[s.Kind], s.Name) {
			c.fail(at+".name", "%q is a built-in %s stage; choose another name, such as my-%s", s.Name, s.Kind, s.Name)
		}
		c.remotePlace(at, s)
		c.remotePhases(at, s)
		c.remoteSubject(at, s, cfg.Bus.Root)
		if total := cfg.Models.Timeouts.Total; s.Kind == "model" && s.Timeout > total {
			c.fail(at+".timeout", "%s is above models.timeouts.total, the longest deadline of a model call, which is %s",
				s.Timeout, total)
		}
	}
}

func (c *checker) remotePlace(at string, s RemoteStage) {
	if s.Tier == "mandatory" && s.Order > 9 {
		c.fail(at+".order", "%d; mandatory stages have orders 0 to 9", s.Order)
	}
	if s.Tier != "mandatory" && s.Order < 10 {
		c.fail(at+".order", "%d; orders below 10 are for mandatory stages", s.Order)
	}
	if s.OnAbsent == "skip" && s.Tier != "optional" {
		c.fail(at+".on-absent", "%s stages wait; skip is for optional ones", s.Tier)
	}
	if len(s.ApplyTo) > 0 && s.Kind != "model" {
		c.fail(at+".apply-to", "classes are of model calls, and this is a %s stage", s.Kind)
	}
}

func (c *checker) remotePhases(at string, s RemoteStage) {
	if len(s.Phases) == 0 {
		c.fail(at+".phases", "a stage has before, after, or both")
	}
	for i, p := range s.Phases {
		if slices.Contains(s.Phases[:i], p) {
			c.fail(fmt.Sprintf("%s.phases[%d]", at, i), "%q stands in the list twice", clip(p))
		}
	}
	after := slices.Contains(s.Phases, "after")
	if s.Again && !after {
		c.fail(at+".again", "another attempt is asked for from after, which phases does not name")
	}
	for i, target := range s.Jumps {
		if target != "end" && s.Kind != "agent" {
			c.fail(fmt.Sprintf("%s.jumps[%d]", at, i), "%q is for agent stages; a %s stage may jump to end",
				clip(target), s.Kind)
		}
	}
	for i, w := range s.Writes {
		if partOf(w, "request") && !slices.Contains(s.Phases, "before") && !s.Again {
			c.fail(fmt.Sprintf("%s.writes[%d]", at, i),
				"only before, or an after with again, changes the request; phases names neither")
		}
	}
}

// remoteSubject keeps programs off the subjects of others: the installation's own, and those of the NATS server.
func (c *checker) remoteSubject(at string, s RemoteStage, root string) {
	own := root + ".v1."
	switch {
	case strings.HasPrefix(s.Subject, own) && !strings.HasPrefix(s.Subject, own+"stage."), s.Subject == root+".v1":
		c.fail(at+".subject",
			"%q lies within Shallot's own subjects; leave it out for %sstage.%s.%s, or name one outside of %s>",
			clip(s.Subject), own, s.Kind, clip(s.Name), own)
	case strings.HasPrefix(s.Subject, "$"), strings.HasPrefix(s.Subject, "_INBOX"):
		c.fail(at+".subject", "%q belongs to the NATS server or to somebody's answers; name one of your own",
			clip(s.Subject))
	}
}

// partOf reports whether a name is a body or a part of it.
func partOf(name, body string) bool { return name == body || strings.HasPrefix(name, body+".") }
