package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// NotePII is the shared note in which pii and tool-pii count what they found: side, type, strategy. It never holds a
// value.
const NotePII = "pii"

// piiPatternMax is the longest pattern of a custom rule.
const piiPatternMax = 512

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
type PIIRule struct {
	Type     string `yaml:"type" json:"type" doc:"email, credit_card, iban, ip, phone, secret, or custom."`
	Strategy string `yaml:"strategy" json:"strategy" doc:"REDACT, MASK, HASH, REPLACE or BLOCK; empty: REDACT."`
	Pattern  string `yaml:"pattern,omitempty" json:"pattern,omitempty" doc:"custom: an RE2 pattern."`
	Name     string `yaml:"name,omitempty" json:"name,omitempty" doc:"custom: the word in [REDACTED_NAME]; empty: CUSTOM."`
}

// ToolPIIConfig is agent.interceptor.tool-pii. Without rules of its own it uses those of pii.
type ToolPIIConfig struct {
	Common     `yaml:",inline"`
	Rules      []PIIRule `yaml:"rules" doc:"What is looked for and what is done with it; none: email with REDACT (tool-pii: the rules of pii)."`
	HashKeyEnv string    `yaml:"hash-key-env" doc:"Environment variable that holds the key of HASH."`
}

// The strategies.
const (
	piiRedact  = "REDACT"
	piiMask    = "MASK"
	piiHash    = "HASH"
	piiReplace = "REPLACE"
	piiBlock   = "BLOCK"
)

type piiRule struct {
	kind     string // as configured, or the lower-case name of a custom rule
	label    string // EMAIL
	strategy string
	detect   piiDetect      // built-in types
	pattern  *regexp.Regexp // custom
}

var piiName = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)

// piiCompile checks and compiles the rules and reads the key that HASH needs.
func piiCompile(rules []PIIRule, keyEnv string, log *slog.Logger) (piiRules, []byte, error) {
	if rules == nil {
		rules = []PIIRule{{Type: "email", Strategy: piiRedact}}
	}
	if len(rules) == 0 {
		return nil, nil, errors.New("rules: the list is empty; name a type or switch the stage off")
	}
	var out piiRules
	var key []byte
	for i, r := range rules {
		fail := func(field, format string, args ...any) error {
			return fmt.Errorf("rules[%d].%s: %s", i, field, fmt.Sprintf(format, args...))
		}
		c := piiRule{kind: strings.ToLower(r.Type), strategy: strings.ToUpper(r.Strategy)}
		c.label = strings.ToUpper(c.kind)
		if c.strategy == "" {
			c.strategy = piiRedact
		}
		if !slices.Contains([]string{piiRedact, piiMask, piiHash, piiReplace, piiBlock}, c.strategy) {
			return nil, nil, fail("strategy", "%q; known: REDACT, MASK, HASH, REPLACE, BLOCK", r.Strategy)
		}
		if c.kind == "custom" {
			if r.Name != "" {
				c.label = strings.ToUpper(r.Name)
				c.kind = strings.ToLower(r.Name)
			}
			switch {
			case !piiName.MatchString(c.label):
				return nil, nil, fail("name", "%q; use letters, digits and _, at most 32", r.Name)
			case piiDetectors[c.kind] != nil:
				return nil, nil, fail("name", "%q is the name of a built-in type", r.Name)
			case r.Pattern == "" || len(r.Pattern) > piiPatternMax:
				return nil, nil, fail("pattern", "a custom rule needs a pattern of 1 to %d bytes", piiPatternMax)
			}
			p, err := regexp.Compile(r.Pattern)
			if err != nil {
				return nil, nil, fail("pattern", "%v", err)
			}
			if p.MatchString("") {
				return nil, nil, fail("pattern", "it matches the empty text; make it ask for at least one character")
			}
			c.pattern = p
		} else {
			if c.detect = piiDetectors[c.kind]; c.detect == nil {
				return nil, nil, fail("type", "%q; known: credit_card, custom, email, iban, ip, phone, secret", r.Type)
			}
			if r.Pattern != "" {
				return nil, nil, fail("pattern", "only type custom takes a pattern")
			}
			if slices.ContainsFunc(out, func(o piiRule) bool { return o.kind == c.kind }) {
				return nil, nil, fail("type", "%s comes twice; keep one rule", c.kind)
			}
		}
		if c.strategy == piiHash && key == nil {
			if keyEnv == "" {
				keyEnv = "SHALLOT_PII_KEY"
			}
			if key = []byte(os.Getenv(keyEnv)); len(key) == 0 {
				return nil, nil, fmt.Errorf("hash-key-env: rules[%d] (%s) says HASH, but the environment variable %s is not set; "+
					"set it to a secret of 16 bytes or more", i, c.kind, keyEnv)
			}
			if len(key) < 16 && log != nil {
				log.Warn("the key of HASH is short; use 16 bytes or more", "variable", keyEnv, "bytes", len(key))
			}
		}
		out = append(out, c)
	}
	return out, key, nil
}

func (rs piiRules) has(strategy string) bool {
	return slices.ContainsFunc(rs, func(r piiRule) bool { return r.strategy == strategy })
}

// streams reports whether a stream can be edited as it comes: a BLOCK must see the whole reply before any of it is
// shown, and how much of a text a pattern may span nobody knows. Otherwise deltas are held back.
func (rs piiRules) streams() bool {
	return !rs.has(piiBlock) && !slices.ContainsFunc(rs, func(r piiRule) bool { return r.pattern != nil })
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
	rules                piiRules
	key                  []byte
	input, output, tools bool
}

func newPII(c *PIIConfig, d Deps) (pipeline.Stage, error) {
	rules, key, err := piiCompile(c.Rules, c.HashKeyEnv, d.Log)
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
	if p.output || p.input && rules.has(piiReplace) {
		s.After, s.Rewrites = p.after, true
		s.Reads, s.Writes = append(s.Reads, "reply.text"), append(s.Writes, "reply.text")
		if !p.output || rules.streams() {
			s.Filter = p.filter
		}
	}
	return s, nil
}

// piiState is what before leaves for after: placeholder to value.
type piiState struct {
	Values map[string]string `json:"values,omitempty"`
}

func (p piiStage) before(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	msgs := messages.Messages(c.Request())
	e := piiEditor{rules: p.rules, key: p.key, tenant: c.Tenant}
	if p.rules.has(piiReplace) && p.input {
		e.names = newPIINames(c.Request())
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
		e.message = i
		if out, ok := e.editMessage(m); ok {
			msgs[i], changed = out, true
		}
	}
	if e.blocked != nil {
		return pipeline.Verdict{}, e.blocked
	}
	note := map[string]piiCounts{}
	c.Noted(NotePII, &note)
	delete(note, "input")
	if len(e.counts) > 0 {
		note["input"] = e.counts
	}
	if len(note) > 0 {
		c.Note(NotePII, note)
	}
	if changed {
		c.SetRequest(messages.WithMessages(c.Request(), msgs))
	}
	if e.names != nil {
		if err := c.SetState(piiState{Values: e.names.values}); err != nil {
			return pipeline.Verdict{}, err
		}
	}
	return pipeline.Continue(), nil
}

func (p piiStage) after(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if c.Fault != nil || !c.HasReply() {
		return pipeline.Continue(), nil
	}
	back, err := piiBack(c)
	if err != nil {
		return pipeline.Verdict{}, err
	}
	e := piiEditor{rules: p.rules, key: p.key, tenant: c.Tenant, reply: true}
	choices := messages.Choices(c.ReplyBytes())
	changed := false
	for i, ch := range choices {
		e.message = i
		m, ok := ch.Message(), false
		if p.output {
			m, ok = e.editTexts(m)
		}
		restored, ok2 := back.message(m)
		if ok || ok2 {
			choices[i], changed = ch.WithMessage(restored), true
		}
	}
	if e.blocked != nil {
		return pipeline.Verdict{}, e.blocked
	}
	if p.output {
		note := map[string]piiCounts{}
		c.Noted(NotePII, &note)
		delete(note, "output")
		if len(e.counts) > 0 {
			note["output"] = e.counts
		}
		if len(note) > 0 {
			c.Note(NotePII, note)
		}
	}
	if changed {
		c.SetReply(messages.WithChoices(c.ReplyBytes(), choices))
	}
	return pipeline.Continue(), nil
}

func (p piiStage) filter(c *messages.Call) (pipeline.ChunkFilter, error) {
	back, err := piiBack(c)
	if err != nil {
		return nil, err
	}
	f := &piiFilter{back: back, texts: map[pipeline.ChunkKey]*piiStream{}}
	if p.output {
		f.editor = &piiEditor{rules: p.rules, key: p.key, tenant: c.Tenant, reply: true}
	}
	return f, nil
}
