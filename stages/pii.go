package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/pii"
)

// PIIConfig is agent.interceptor.pii.
type PIIConfig struct {
	Common             `yaml:",inline"`
	Rules              []PIIRule `yaml:"rules" doc:"What is looked for and what is done with it; none: email with REDACT."`
	ApplyToInput       bool      `yaml:"apply-to-input" doc:"User messages."`
	ApplyToOutput      bool      `yaml:"apply-to-output" doc:"Replies."`
	ApplyToToolResults bool      `yaml:"apply-to-tool-results" doc:"Tool results in the messages."`
	HashKeyEnv         string    `yaml:"hash-key-env" doc:"Environment variable that holds the key of HASH and REPLACE."`
}

// PIIRule says what to look for and what to do with it.
type PIIRule = pii.Rule

// ToolPIIConfig is agent.interceptor.tool-pii. Without rules of its own it uses those of pii.
type ToolPIIConfig struct {
	Common     `yaml:",inline"`
	Rules      []PIIRule `yaml:"rules" doc:"What is looked for and what is done with it; none: the rules of pii."`
	HashKeyEnv string    `yaml:"hash-key-env" doc:"Environment variable that holds the key of HASH."`
}

// piiStage keeps personal data from the model and, if told so, from the caller. Input is every text of the request but
// tool results; output is every text of the reply but tool calls, which must stay what the model asked for. Names of
// people and postal addresses are not looked for, nor is anything in images, files and audio. It fails closed: an error
// of either phase ends the call.
//
// REPLACE gives the model a placeholder and puts the value back in the reply's texts and tool-call arguments; the
// values travel in the call's private state only. In output and tool results, where nothing is put back, REPLACE acts
// as REDACT.
type piiStage struct {
	rules                pii.Rules
	key                  []byte
	input, output, tools bool
}

func defaultPII() PIIConfig {
	return PIIConfig{ApplyToInput: true, HashKeyEnv: "SHALLOT_PII_KEY"}
}

func newPII(c *PIIConfig, d Deps) (pipeline.Stage, error) {
	rules, key, err := pii.Compile(c.Rules, c.HashKeyEnv, d.Log)
	if err != nil {
		return pipeline.Stage{}, err
	}
	if !c.ApplyToInput && !c.ApplyToOutput && !c.ApplyToToolResults {
		return pipeline.Stage{}, errors.New("apply-to-input, apply-to-output and apply-to-tool-results are all false; " +
			"switch one on or the stage off")
	}
	p := piiStage{rules: rules, key: key, input: c.ApplyToInput, output: c.ApplyToOutput, tools: c.ApplyToToolResults}
	s := pipeline.Stage{Role: pipeline.RoleRedact, FailClosed: true}
	if p.input || p.tools {
		s.Before = p.before
		s.Reads, s.Writes = append(s.Reads, "request"), append(s.Writes, "request")
	}
	if p.output || p.input && rules.Has(pii.Replace) {
		s.After, s.Rewrites = p.after, true
		s.Reads, s.Writes = append(s.Reads, "reply"), append(s.Writes, "reply")
		s.ReadsAfter = []string{"reply.text"}
		if !p.output || rules.Streams() {
			s.Filter = p.filter
		}
	}
	return s, nil
}

func (p piiStage) before(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if len(view.Of(c.Wire).Messages(c.Request())) == 0 {
		return pipeline.Continue(), nil
	}
	e := pii.Editor{Rules: p.rules, Key: p.key, Tenant: c.Tenant}
	if p.rules.Has(pii.Replace) && p.input {
		e.Names = pii.NewPlaceholders(c.Request(), p.key, c.Tenant, cmp.Or(c.Session, c.Run))
	}
	request := e.EditRequest(c.Request(), p.input, p.tools)
	if e.Blocked != nil {
		return pipeline.Verdict{}, e.Blocked
	}
	note := map[string]pii.Counts{}
	c.Noted(messages.NotePII, &note)
	delete(note, "input")
	if len(e.Counts) > 0 {
		note["input"] = e.Counts
	}
	p.tell(c, note)
	if string(request) != string(c.Request()) {
		c.SetRequest(request)
	}
	if e.Names != nil {
		if err := c.SetState(pii.State{Values: e.Names.Values}); err != nil {
			return pipeline.Verdict{}, err
		}
	}
	return pipeline.Continue(), nil
}

// tell notes what was found, and for the caller how many values are hidden.
func (p piiStage) tell(c *messages.Call, note map[string]pii.Counts) {
	c.Edited("pii")
	if len(note) == 0 {
		return
	}
	c.Note(messages.NotePII, note)
	c.Edited("pii", hiddenWord(note))
}

func hiddenWord(note map[string]pii.Counts) string {
	n := 0
	for _, counts := range note {
		for _, by := range counts {
			for _, k := range by {
				n += k
			}
		}
	}
	return fmt.Sprintf("hidden=%d", n)
}

func (p piiStage) after(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if c.Fault != nil || !c.HasReply() {
		return pipeline.Continue(), nil
	}
	back, err := pii.BackOf(c)
	if err != nil {
		return pipeline.Verdict{}, err
	}
	e := pii.Editor{Rules: p.rules, Key: p.key, Tenant: c.Tenant, Reply: true}
	reply := c.Reply()
	if p.output {
		reply = e.EditReply(reply)
	}
	reply = back.Reply(reply)
	if e.Blocked != nil {
		return pipeline.Verdict{}, e.Blocked
	}
	if p.output {
		note := map[string]pii.Counts{}
		c.Noted(messages.NotePII, &note)
		delete(note, "output")
		if len(e.Counts) > 0 {
			note["output"] = e.Counts
		}
		p.tell(c, note)
	}
	if string(reply) != string(c.Reply()) {
		c.SetReply(reply)
	}
	return pipeline.Continue(), nil
}

func (p piiStage) filter(c *messages.Call) (pipeline.ChunkFilter, error) {
	back, err := pii.BackOf(c)
	if err != nil {
		return nil, err
	}
	var e *pii.Editor
	if p.output {
		e = &pii.Editor{Rules: p.rules, Key: p.key, Tenant: c.Tenant, Reply: true}
	}
	return pii.NewFilter(back, e), nil
}
