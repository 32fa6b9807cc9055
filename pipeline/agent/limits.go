package agent

import (
	"fmt"
	"strings"
)

// modelLimit says that the run may ask no model any more, and why; empty if it may.
func (s *State) modelLimit() string {
	l, used := s.Start.Spec.Limits, s.Spent.Usage
	switch {
	case s.Spent.Models >= l.ModelCalls:
		return fmt.Sprintf("Model call limits exceeded: run limit (%d/%d)", s.Spent.Models, l.ModelCalls)
	case l.Tokens != nil && used.tokens() >= *l.Tokens:
		return fmt.Sprintf("Token limits exceeded: run limit (%d/%d)", used.tokens(), *l.Tokens)
	case l.Micros != nil && used.Micros >= *l.Micros:
		return fmt.Sprintf("Money limits exceeded: run limit (%.6g/%.6g USD)", float64(used.Micros)/1e6,
			float64(*l.Micros)/1e6)
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
	sub.Tokens = share(sub.Tokens, l.Tokens, s.Spent.Usage.tokens(), n)
	sub.Micros = share(sub.Micros, l.Micros, s.Spent.Usage.Micros, n)
	if l.Tools.Run != nil {
		left := max(*l.Tools.Run-s.Spent.Tools.total(), 0) / n
		if sub.Tools.Run != nil {
			left = min(left, *sub.Tools.Run)
		}
		sub.Tools.Run = &left
	}
	return sub
}

// share is one of n equal parts of what is left of a limit, or the own limit if that is less.
func share(own, limit *int64, used int64, n int) *int64 {
	if limit == nil {
		return own
	}
	left := max(*limit-used, 0) / int64(n)
	if own != nil {
		left = min(left, *own)
	}
	return &left
}
