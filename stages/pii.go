package stages

import (
	"context"
	"errors"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/pii"
)

// PIIConfig is agent.interceptor.pii (contracts T4).
type PIIConfig struct {
	Common             `yaml:",inline"`
	Rules              []PIIRule `yaml:"rules" doc:"What is looked for and what is done with it; none: email with REDACT (tool-pii: the rules of pii)."`
	ApplyToInput       bool      `yaml:"apply-to-input" doc:"User messages."`
	ApplyToOutput      bool      `yaml:"apply-to-output" doc:"Replies."`
	ApplyToToolResults bool      `yaml:"apply-to-tool-results" doc:"Tool results in the messages."`
	HashKeyEnv         string    `yaml:"hash-key-env" doc:"Environment variable that holds the key of HASH."`
}

// PIIRule says what to look for and what to do with it.
type PIIRule = pii.Rule

// ToolPIIConfig is agent.interceptor.tool-pii. Without rules of its own it uses those of pii.
type ToolPIIConfig struct {
	Common     `yaml:",inline"`
	Rules      []PIIRule `yaml:"rules" doc:"What is looked for and what is done with it; none: email with REDACT (tool-pii: the rules of pii)."`
	HashKeyEnv string    `yaml:"hash-key-env" doc:"Environment variable that holds the key of HASH."`
}

// piiStage keeps personal data from the model and, if told so, from the caller (S4-PII-1). Input is the text of all
// messages but tool results, and the string values in the arguments of earlier tool calls; names of people and postal
// addresses are not looked for, nor is anything in images, files and audio. It fails closed: an error of either phase
// ends the call.
//
// REPLACE gives the model a placeholder and puts the value back in the reply's text and tool-call arguments; the
// values travel in the call's private state only. In output and tool results, where nothing is put back, REPLACE acts
// as REDACT. Output rules never touch tool calls (PI-7).
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
		return pipeline.Stage{}, errors.New("apply-to-input, apply-to-output and apply-to-tool-results are all false; switch one on or the stage off")
	}
	p := piiStage{rules: rules, key: key, input: c.ApplyToInput, output: c.ApplyToOutput, tools: c.ApplyToToolResults}
	s := pipeline.Stage{FailClosed: true}
	if p.input || p.tools {
		s.Before = p.before
		s.Reads, s.Writes = append(s.Reads, "request.messages"), append(s.Writes, "request.messages")
	}
	if p.output || p.input && rules.Has(pii.Replace) {
		s.After, s.Rewrites = p.after, true
		s.Reads, s.Writes = append(s.Reads, "reply.text"), append(s.Writes, "reply.text")
		s.ReadsAfter = []string{"reply.text"}
		if !p.output || rules.Streams() {
			s.Filter = p.filter
		}
	}
	return s, nil
}

func (p piiStage) before(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	msgs := chat.Messages(c.Request())
	e := pii.Editor{Rules: p.rules, Key: p.key, Tenant: c.Tenant}
	if p.rules.Has(pii.Replace) && p.input {
		e.Names = pii.NewPlaceholders(c.Request())
	}
	changed := false
	for i, m := range msgs {
		role := m.Role()
		if role == "tool" || role == "function" {
			if !p.tools {
				continue
			}
		} else if !p.input {
			continue
		}
		e.Message = i
		if out, ok := e.EditMessage(m); ok {
			msgs[i], changed = out, true
		}
	}
	if e.Blocked != nil {
		return pipeline.Verdict{}, e.Blocked
	}
	note := map[string]pii.Counts{}
	c.Noted(messages.NotePII, &note)
	delete(note, "input")
	if len(e.Counts) > 0 {
		note["input"] = e.Counts
	}
	if len(note) > 0 {
		c.Note(messages.NotePII, note)
	}
	if changed {
		c.SetRequest(chat.WithMessages(c.Request(), msgs))
	}
	if e.Names != nil {
		if err := c.SetState(pii.State{Values: e.Names.Values}); err != nil {
			return pipeline.Verdict{}, err
		}
	}
	return pipeline.Continue(), nil
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
	choices := chat.Choices(c.Reply())
	changed := false
	for i, ch := range choices {
		e.Message = i
		m, ok := ch.Message(), false
		if p.output {
			m, ok = e.EditTexts(m)
		}
		restored, ok2 := back.Message(m)
		if ok || ok2 {
			choices[i], changed = ch.WithMessage(restored), true
		}
	}
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
		if len(note) > 0 {
			c.Note(messages.NotePII, note)
		}
	}
	if changed {
		c.SetReply(chat.WithChoices(c.Reply(), choices))
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
