package stages

import (
	"context"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/texts"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// SubAgentConfig is agent.interceptor.sub-agent.
type SubAgentConfig struct {
	Common        `yaml:",inline"`
	MinMatchScore int            `yaml:"min-match-score" doc:"Least score of a suggestion."`
	CaseSensitive bool           `yaml:"case-sensitive" doc:"Whether keywords differ by case."`
	Ties          string         `yaml:"ties" doc:"Of equal scores the first or the last agent wins."`
	Agents        []SubAgentSpec `yaml:"agents" doc:"Agents that are suggested."`
}

// SubAgentSpec is one agent that can be proposed.
type SubAgentSpec struct {
	Name        string            `yaml:"name" doc:"Name in the hint."`
	Description string            `yaml:"description" doc:"What it does, in the hint."`
	Keywords    []SubAgentKeyword `yaml:"keywords" doc:"Words that speak for it."`
}

// SubAgentKeyword is a text whose presence in the user's message speaks for an agent.
type SubAgentKeyword struct {
	Keyword string `yaml:"keyword" doc:"Text that is looked for in the newest user message."`
	Weight  int    `yaml:"weight" doc:"Score of the keyword."`
}

func defaultSubAgent() SubAgentConfig {
	return SubAgentConfig{
		Common:        Common{ApplyTo: []string{pipeline.ApplyAgent, pipeline.ApplySession}},
		MinMatchScore: 5, CaseSensitive: true, Ties: "first",
	}
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *SubAgentConfig) Validate() error {
	var f faults
	f.when(c.Ties != "" && c.Ties != "first" && c.Ties != "last", "ties: %q; known: first, last", c.Ties)
	for i, a := range c.Agents {
		f.when(strings.TrimSpace(a.Name) == "" || strings.ContainsAny(a.Name, "\r\n"),
			"agents[%d].name: %q; a name is needed, on one line", i, a.Name)
		seen := map[string]bool{}
		for j, k := range a.Keywords {
			f.when(k.Keyword == "", "agents[%d].keywords[%d].keyword: empty; it would match every message", i, j)
			f.when(seen[k.Keyword],
				"agents[%d].keywords[%d].keyword: %q comes twice; give it one weight", i, j, k.Keyword)
			seen[k.Keyword] = true
		}
	}
	return f.join()
}

// newSubAgent makes the stage that proposes a sub-agent to the model when the newest user message holds words that
// speak for it. It only adds a line to the system prompt; whether to delegate is the model's decision.
func newSubAgent(conf *SubAgentConfig, d Deps) (pipeline.Stage, error) {
	cfg, say := *conf, texts.In(d.Texts)
	return pipeline.Stage{
		Reads: []string{"request.messages"}, Writes: []string{"request.system"},
		Plain: func(*messages.Call) bool { return len(cfg.Agents) == 0 },
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.Edited("sub-agent")
			msgs, ok := conversation.Messages(c.Wire, c.Request())
			if !ok {
				return pipeline.Continue(), nil
			}
			at := view.NewestUser(msgs)
			if at < 0 {
				return pipeline.Continue(), nil
			}
			agent, score := cfg.best(msgs[at].Text())
			if agent == "" || score < cfg.MinMatchScore {
				return pipeline.Continue(), nil
			}
			request := c.Request()
			if bare, found := withoutHints(msgs); found {
				request = view.Of(c.Wire).WithMessages(request, bare)
			}
			c.SetRequest(view.Of(c.Wire).AppendSystem(request, say.Hint(agent, score)))
			c.Edited("sub-agent", "hint")
			d.Log.Debug("delegation hint", "call", c.ID, "agent", agent, "score", score)
			return pipeline.Continue(), nil
		},
	}, nil
}

// best returns the agent with the highest score for a text; each keyword counts once, however often it comes.
func (c SubAgentConfig) best(text string) (agent string, score int) {
	if !c.CaseSensitive {
		text = strings.ToLower(text)
	}
	for _, a := range c.Agents {
		sum := 0
		for _, k := range a.Keywords {
			word := k.Keyword
			if !c.CaseSensitive {
				word = strings.ToLower(word)
			}
			if strings.Contains(text, word) {
				sum += k.Weight
			}
		}
		if agent == "" || sum > score || sum == score && c.Ties == "last" {
			agent, score = a.Name, sum
		}
	}
	return agent, score
}

// withoutHints takes the hints of earlier calls out of the system prompt, so that there is never more than one and it
// stands at the end. What held nothing else goes with them.
func withoutHints(msgs []view.Msg) (out []view.Msg, found bool) {
	strip := func(s string) string {
		return strings.TrimPrefix(texts.Hints.ReplaceAllString(s, ""), "\n\n")
	}
	for i, m := range msgs {
		if !m.System() {
			return append(out, msgs[i:]...), found
		}
		if !strings.Contains(m.Text(), "[DELEGATION_HINT]") {
			out = append(out, m)
			continue
		}
		n, changed := m.MapText(func(s string) string {
			if !texts.Hints.MatchString(s) {
				return s
			}
			return strip(s)
		})
		if !changed {
			out = append(out, m)
			continue
		}
		found = true
		if n, left := n.WithoutEmptyTexts(); left {
			out = append(out, n)
		}
	}
	return out, found
}
