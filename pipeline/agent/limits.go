package agent

import (
	"fmt"
	"strings"
)

// modelLimit says that the run has used up its model calls; empty if it has not.
func (s *State) modelLimit() string {
	if limit := s.Start.Spec.Limits.ModelCalls; s.Spent.Models >= limit {
		return fmt.Sprintf("Model call limits exceeded: run limit (%d/%d)", s.Spent.Models, limit)
	}
	return ""
}

// Admit goes through tool calls in their order and says of each why it may not run; empty if it may. run and thread
// count the calls before. What is not admitted is not counted.
func (l ToolLimits) Admit(names []string, run, thread Counts) []string {
	run, thread = clone(run), clone(thread)
	out := make([]string, len(names))
	for i, name := range names {
		if name == "" {
			continue // no tool
		}
		over := exceeded(l.Limit, run.total(), thread.total())
		if one := exceeded(l.ByTool[name], run[name], thread[name]); one != "" {
			over = strings.TrimPrefix(over+", "+name+": "+one, ", ")
		}
		if over != "" {
			out[i] = "Tool call limits exceeded: " + over
			continue
		}
		run[name]++
		thread[name]++
	}
	return out
}

func exceeded(l Limit, run, thread int) string {
	var out []string
	if l.Thread != nil && thread >= *l.Thread {
		out = append(out, fmt.Sprintf("thread limit (%d/%d)", thread, *l.Thread))
	}
	if l.Run != nil && run >= *l.Run {
		out = append(out, fmt.Sprintf("run limit (%d/%d)", run, *l.Run))
	}
	return strings.Join(out, ", ")
}

func clone(c Counts) Counts {
	out := make(Counts, len(c))
	for k, v := range c {
		out[k] = v
	}
	return out
}

// Left are the limits of a sub-agent's run, one of n that begin at once: its own, and at most its share of what the run
// has left.
func (s *State) Left(sub Limits, n int) Limits {
	l := s.Start.Spec.Limits
	sub.ModelCalls = min(sub.ModelCalls, max(l.ModelCalls-s.Spent.Models, 0)/n)
	if l.Tools.Run != nil {
		left := max(*l.Tools.Run-s.Spent.Tools.total(), 0) / n
		if sub.Tools.Run != nil {
			left = min(left, *sub.Tools.Run)
		}
		sub.Tools.Run = &left
	}
	return sub
}
