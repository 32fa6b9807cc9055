package args

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// How arguments are coerced.
const (
	Documents = "documents" // the specification's table of six types, at every depth
	Extended  = "extended"  // and the wider rules: JSON in strings, trimmed words, unions, null for optional
	Off       = "off"       // nothing is changed; the schema decides
)

// Options are the settings of one parse. The zero value is the default.
type Options struct {
	Tool        string // the tool's name, for the text of Faults
	Coercion    string // Documents if empty
	IntegerBits int    // 64 if 0; 32 refuses integers that other languages' int does not hold
	WrapScalars bool   // extended only: a single value where an array is wanted becomes an array of one
	AllowBlank  []string
	Undeclared  string // Drop if empty; Auto must be resolved by the caller, who knows the tool
	Formats     string // Annotate if empty
	Repair      bool   // a text that is not JSON is repaired if it can mean one thing only
}

// Whether a format of the schema is checked: date, date-time, time, email, uuid and uri can be.
const (
	Annotate = "annotate"
	Assert   = "assert"
)

// Change is one thing that parsing did to the arguments. From and To are JSON, shortened.
type Change struct {
	Path string `json:"path"` // JSON pointer
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Rule string `json:"rule"`
}

// The rules of a Change.
const (
	RuleToString  = "to_string"
	RuleToInteger = "to_integer"
	RuleToNumber  = "to_number"
	RuleToBoolean = "to_boolean"
	RuleFromJSON  = "json_in_string"
	RuleWrapped   = "wrapped_in_array"
	RuleEnum      = "enum_spelling"
	RuleDefault   = "default"
	RuleNull      = "null_left_out"
	RuleDropped   = "undeclared_dropped"
	RuleRenamed   = "renamed"
	RuleUnwrapped = "unwrapped"
	RuleRepaired  = "repaired"
	RuleTwice     = "given_twice"
)

// Parsed are arguments that fit their schema. They do not change and are safe for concurrent use.
type Parsed struct {
	root    *value
	Changes []Change
}

// Parse reads the arguments of a call: required names first, then each property of the schema in order, then the whole
// against the schema. raw is the arguments as the model wrote them: a JSON object, a JSON string that holds one, or
// nothing or null for no arguments. The second result is nil if they are good. An empty schema takes any object. Parse
// never panics and changes neither schema nor raw; the same input gives the same result.
func (p *Parser) Parse(schema, raw []byte, o Options) (*Parsed, *Faults) {
	fs := &Faults{Tool: o.Tool}
	root, changes, err := parseRoot(raw, o.Repair)
	if err != nil {
		fs.add(Issue{Code: CodeInvalidJSON, Message: "the arguments are " + err.Error()})
		return nil, fs
	}
	if root.kind != kObject {
		fs.add(Issue{
			Code: CodeTypeMismatch, Expected: "object", Got: got(root),
			Message: "the arguments must be one JSON object, got " + got(root),
		})
		return nil, fs
	}
	if len(schema) == 0 {
		return &Parsed{root: root, Changes: changes}, nil
	}
	s := p.schema(schema, o.Formats == Assert)
	if s.err != nil {
		fs.add(Issue{Code: CodeBadSchema, Path: s.at, Message: "the tool's own schema cannot be used: " + s.err.Error()})
		return nil, fs
	}
	if s.weigh(s.root, root, maxCost) > maxCost {
		fs.add(tooMuch(""))
		return nil, fs
	}
	r := &run{s: s, o: o, extended: o.Coercion == Extended, budget: new(trialBudget), changes: changes}
	root = r.arguments(root)
	fs.Issues = r.issues
	if len(fs.Issues) > 0 {
		fs.finish()
		return nil, fs
	}
	return &Parsed{root: root, Changes: r.changes}, nil
}

// parseRoot reads the text of the arguments and returns what it had to change to read it.
func parseRoot(raw []byte, fix bool) (*value, []Change, error) {
	const mark = "\ufeff" // the byte order mark, which some editors and shells write
	raw = bytes.TrimPrefix(raw, []byte(mark))
	if len(raw) == 0 {
		return &value{kind: kObject}, nil, nil
	}
	r := &reader{}
	v, err := r.parse(raw)
	for range 2 { // a model's arguments are a string of JSON; some clients quote them twice
		if err != nil || v.kind != kString {
			break
		}
		if blank(v.str) {
			return &value{kind: kObject}, nil, nil
		}
		raw = []byte(strings.TrimPrefix(v.str, mark))
		v, err = r.parse(raw)
	}
	var changes []Change
	for _, name := range r.twice {
		changes = append(changes, Change{Path: pointer("", Clip(name)), Rule: RuleTwice})
	}
	switch {
	case err == nil && v.kind == kNull:
		v = &value{kind: kObject}
	case err != nil && fix && !json.Valid(raw) && depth(raw) <= MaxDepth:
		if x, wrong := repair(string(raw)); wrong == nil {
			return x, []Change{{From: Clip(string(rawjson.Encode(string(raw)))), Rule: RuleRepaired}}, nil
		} else {
			err = fmt.Errorf("%w; it was not repaired: %w", err, wrong)
		}
	}
	return v, changes, err
}

// Raw is the arguments as compact JSON: declared names in the order of the schema, then the others as they came.
// Numbers and strings that nothing changed keep their own text.
func (a *Parsed) Raw() []byte { return a.root.write(nil) }

// Canonical is the arguments in their only canonical form: names sorted at every depth, numbers written one way. Equal
// arguments give equal bytes; "1" and 1 are not equal.
func (a *Parsed) Canonical() []byte { return a.root.canonical(nil) }

// Get returns an argument as raw JSON; ok is false if there is none of that name.
func (a *Parsed) Get(name string) (raw json.RawMessage, ok bool) {
	v := a.root.get(name)
	if v == nil {
		return nil, false
	}
	return v.write(nil), true
}

// GetOrDefault returns an argument as raw JSON, or other if there is none of that name.
func (a *Parsed) GetOrDefault(name string, other json.RawMessage) json.RawMessage {
	if raw, ok := a.Get(name); ok {
		return raw
	}
	return other
}

// GetString returns a text argument; ok is false if it is missing or not a string.
func (a *Parsed) GetString(name string) (s string, ok bool) {
	if v := a.root.get(name); v != nil && v.kind == kString {
		return v.str, true
	}
	return "", false
}

// GetInt returns a whole number of 64 bits; ok is false if it is missing or anything else.
func (a *Parsed) GetInt(name string) (n int64, ok bool) {
	v := a.root.get(name)
	if v == nil || v.kind != kNumber {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.raw), 10, 64)
	return n, err == nil
}

// Has reports whether the argument is there.
func (a *Parsed) Has(name string) bool { return a.root.get(name) != nil }

// Len is the number of arguments.
func (a *Parsed) Len() int { return len(a.root.keys) }

// ToMap returns the arguments decoded, numbers as json.Number.
func (a *Parsed) ToMap() map[string]any { return a.root.plain().(map[string]any) }

// Canonical is the canonical form of any JSON; bytes that are not JSON are returned as they are.
func Canonical(raw []byte) []byte {
	v, err := parseValue(raw)
	if err != nil {
		return raw
	}
	return v.canonical(nil)
}
