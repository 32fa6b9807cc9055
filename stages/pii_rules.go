package stages

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
)

// piiPatternMax is the longest pattern of a custom rule.
const piiPatternMax = 512

// PIIRule says what to look for and what to do with it.
type PIIRule struct {
	Type     string `yaml:"type" json:"type" doc:"email, credit_card, iban, ip, phone, secret, or custom."`  // email, credit_card, iban, ip, phone, secret, custom
	Strategy string `yaml:"strategy" json:"strategy" doc:"REDACT, MASK, HASH, REPLACE or BLOCK."`            // REDACT (also if empty), MASK, HASH, REPLACE, BLOCK
	Pattern  string `yaml:"pattern,omitempty" json:"pattern,omitempty" doc:"custom: an RE2 pattern."`        // custom: an RE2 pattern
	Name     string `yaml:"name,omitempty" json:"name,omitempty" doc:"custom: the word in [REDACTED_NAME]."` // custom: the word in [REDACTED_NAME]; CUSTOM if empty
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

// piiState is what before leaves for after: placeholder to value.
type piiState struct {
	Values map[string]string `json:"values,omitempty"`
}
