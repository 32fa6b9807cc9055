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

// Compile checks and compiles the rules, by default one that redacts mail addresses, and reads the key of HASH and
// REPLACE. Each error begins with its key of the configuration.
func Compile(rules []Rule, keyEnv string, log *slog.Logger) (Rules, []byte, error) {
	if rules == nil {
		rules = []Rule{{Type: "email", Strategy: Redact}}
	}
	if len(rules) == 0 {
		return nil, nil, errors.New("rules: the list is empty; name a type or switch the stage off")
	}
	var out Rules
	for i, r := range rules {
		c, err := r.compile(out)
		if err != nil {
			return nil, nil, fmt.Errorf("rules[%d].%w", i, err)
		}
		out = append(out, c)
	}
	key, err := out.key(cmp.Or(keyEnv, "SHALLOT_PII_KEY"), log)
	return out, key, err
}

func (r Rule) compile(others Rules) (compiledRule, error) {
	c := compiledRule{kind: strings.ToLower(r.Type), strategy: cmp.Or(strings.ToUpper(r.Strategy), Redact)}
	c.label = strings.ToUpper(c.kind)
	if !slices.Contains([]string{Redact, Mask, Hash, Replace, Block}, c.strategy) {
		return c, fmt.Errorf("strategy: %q; known: REDACT, MASK, HASH, REPLACE, BLOCK", r.Strategy)
	}
	if c.kind == "custom" {
		return r.custom(c)
	}
	switch c.detect = detectors[c.kind]; {
	case c.detect == nil:
		return c, fmt.Errorf("type: %q; known: credit_card, custom, email, iban, ip, phone, secret", r.Type)
	case r.Pattern != "":
		return c, errors.New("pattern: only type custom takes a pattern")
	case slices.ContainsFunc(others, func(o compiledRule) bool { return o.kind == c.kind }):
		return c, fmt.Errorf("type: %s comes twice; keep one rule", c.kind)
	}
	return c, nil
}

// custom completes a rule that has a pattern of its own.
func (r Rule) custom(c compiledRule) (compiledRule, error) {
	if r.Name != "" {
		c.kind, c.label = strings.ToLower(r.Name), strings.ToUpper(r.Name)
	}
	switch {
	case !ruleName.MatchString(c.label):
		return c, fmt.Errorf("name: %q; use letters, digits and _, at most 32", r.Name)
	case detectors[c.kind] != nil:
		return c, fmt.Errorf("name: %q is the name of a built-in type", r.Name)
	case r.Pattern == "" || len(r.Pattern) > maxPattern:
		return c, fmt.Errorf("pattern: a custom rule needs a pattern of 1 to %d bytes", maxPattern)
	}
	var err error
	if c.pattern, err = regexp.Compile(r.Pattern); err != nil {
		return c, fmt.Errorf("pattern: %w", err)
	}
	if c.pattern.MatchString("") {
		return c, errors.New("pattern: it matches the empty text; make it ask for at least one character")
	}
	return c, nil
}

// key reads the key of HASH and REPLACE from the environment. HASH must have one; REPLACE without one gets a random
// key, and then its placeholders hold in this process only.
func (rs Rules) key(env string, log *slog.Logger) ([]byte, error) {
	hash := slices.IndexFunc(rs, func(r compiledRule) bool { return r.strategy == Hash })
	if hash < 0 && !rs.Has(Replace) {
		return nil, nil
	}
	key := []byte(os.Getenv(env))
	switch {
	case len(key) == 0 && hash >= 0:
		return nil, fmt.Errorf("hash-key-env: rules[%d] (%s) says HASH, but the environment variable %s is not set; "+
			"set it to a secret of 16 bytes or more", hash, rs[hash].kind, env)
	case len(key) == 0:
		key = make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails
		log.Warn("REPLACE has no key; a placeholder that a list, a summary or a cache keeps is not put back by another "+
			"process, nor after a restart", "variable", env)
	case len(key) < 16 && hash >= 0:
		log.Warn("the key of HASH is short; use 16 bytes or more", "variable", env, "bytes", len(key))
	}
	return key, nil
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
