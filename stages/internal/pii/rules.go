// Package pii finds personal data in texts, whole or streamed, hides it, and puts it back where a rule says REPLACE. It
// knows no stage.
package pii

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
)

// maxPattern is the longest pattern of a custom rule.
const maxPattern = 512

// Rule says what to look for and what to do with it.
type Rule struct {
	Type     string `yaml:"type" doc:"email, credit_card, iban, ip, phone, secret, or custom."`
	Strategy string `yaml:"strategy" doc:"REDACT (also if empty), MASK, HASH, REPLACE or BLOCK."`
	Pattern  string `yaml:"pattern,omitempty" doc:"custom: an RE2 pattern."`
	Name     string `yaml:"name,omitempty" doc:"custom: the word in [REDACTED_NAME]; CUSTOM if empty."`
}

// The strategies.
const (
	Redact  = "REDACT"
	Mask    = "MASK"
	Hash    = "HASH"
	Replace = "REPLACE"
	Block   = "BLOCK"
)

// compiledRule is a Rule, checked.
type compiledRule struct {
	kind     string // as configured, or the lower-case name of a custom rule
	label    string // EMAIL
	strategy string
	detect   detector       // built-in types
	pattern  *regexp.Regexp // custom
}

var ruleName = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)

// Compile checks and compiles the rules and reads the key of HASH and REPLACE. HASH must have one; REPLACE without one
// gets a random key, and then its placeholders hold in this process only.
func Compile(rules []Rule, keyEnv string, log *slog.Logger) (Rules, []byte, error) {
	if rules == nil {
		rules = []Rule{{Type: "email", Strategy: Redact}}
	}
	if len(rules) == 0 {
		return nil, nil, errors.New("rules: the list is empty; name a type or switch the stage off")
	}
	var out Rules
	var key []byte
	for i, r := range rules {
		fail := func(field, format string, args ...any) error {
			return fmt.Errorf("rules[%d].%s: %s", i, field, fmt.Sprintf(format, args...))
		}
		c := compiledRule{kind: strings.ToLower(r.Type), strategy: strings.ToUpper(r.Strategy)}
		c.label = strings.ToUpper(c.kind)
		if c.strategy == "" {
			c.strategy = Redact
		}
		if !slices.Contains([]string{Redact, Mask, Hash, Replace, Block}, c.strategy) {
			return nil, nil, fail("strategy", "%q; known: REDACT, MASK, HASH, REPLACE, BLOCK", r.Strategy)
		}
		if c.kind == "custom" {
			if r.Name != "" {
				c.label = strings.ToUpper(r.Name)
				c.kind = strings.ToLower(r.Name)
			}
			switch {
			case !ruleName.MatchString(c.label):
				return nil, nil, fail("name", "%q; use letters, digits and _, at most 32", r.Name)
			case detectors[c.kind] != nil:
				return nil, nil, fail("name", "%q is the name of a built-in type", r.Name)
			case r.Pattern == "" || len(r.Pattern) > maxPattern:
				return nil, nil, fail("pattern", "a custom rule needs a pattern of 1 to %d bytes", maxPattern)
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
			if c.detect = detectors[c.kind]; c.detect == nil {
				return nil, nil, fail("type", "%q; known: credit_card, custom, email, iban, ip, phone, secret", r.Type)
			}
			if r.Pattern != "" {
				return nil, nil, fail("pattern", "only type custom takes a pattern")
			}
			if slices.ContainsFunc(out, func(o compiledRule) bool { return o.kind == c.kind }) {
				return nil, nil, fail("type", "%s comes twice; keep one rule", c.kind)
			}
		}
		if c.strategy == Hash && key == nil {
			keyEnv = cmp.Or(keyEnv, "SHALLOT_PII_KEY")
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
	if key == nil && out.Has(Replace) {
		if key = []byte(os.Getenv(cmp.Or(keyEnv, "SHALLOT_PII_KEY"))); len(key) == 0 {
			key = make([]byte, sha256.Size)
			_, _ = rand.Read(key) // never fails
			if log != nil {
				log.Warn("REPLACE has no key; a placeholder that a list, a summary or a cache keeps is not put back by another "+
					"process, nor after a restart", "variable", cmp.Or(keyEnv, "SHALLOT_PII_KEY"))
			}
		}
	}
	return out, key, nil
}

// Has reports whether a rule has the strategy.
func (rs Rules) Has(strategy string) bool {
	return slices.ContainsFunc(rs, func(r compiledRule) bool { return r.strategy == strategy })
}

// Streams reports whether a stream can be edited as it comes: a BLOCK must see the whole reply before any of it is
// shown, and how much of a text a pattern may span nobody knows. Otherwise deltas are held back.
func (rs Rules) Streams() bool {
	return !rs.Has(Block) && !slices.ContainsFunc(rs, func(r compiledRule) bool { return r.pattern != nil })
}

// State is what before leaves for after: placeholder to value.
type State struct {
	Values map[string]string `json:"values,omitempty"`
}
