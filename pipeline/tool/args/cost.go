package args

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The limits of checking one set of arguments. A schema with branches that lead back to itself doubles the work with
// every level of the arguments, so a few hundred bytes could keep a worker busy for ever. The work is counted before it
// is done.
const (
	maxCost    = 500_000 // pairs of subschema and value in one check
	maxSpread  = 10_000  // subschemas that one value is checked against
	maxPattern = 2_000   // instructions of a compiled pattern
	maxMatch   = 200_000_000
)

// onward calls each with the subschemas that apply to the same value as sub.
func onward(sub *jsonschema.Schema, each func(*jsonschema.Schema)) {
	one := func(list ...*jsonschema.Schema) {
		for _, s := range list {
			if s != nil {
				each(s)
			}
		}
	}
	one(sub.Ref, sub.RecursiveRef, sub.Not, sub.If, sub.Then, sub.Else)
	if sub.DynamicRef != nil {
		one(sub.DynamicRef.Ref)
	}
	one(sub.AllOf...)
	one(sub.AnyOf...)
	one(sub.OneOf...)
	for _, s := range sub.DependentSchemas {
		one(s)
	}
	for _, d := range sub.Dependencies {
		if s, ok := d.(*jsonschema.Schema); ok {
			one(s)
		}
	}
}

// inward calls each with the subschemas that apply to the members or items of the value.
func inward(sub *jsonschema.Schema, each func(*jsonschema.Schema)) {
	one := func(list ...*jsonschema.Schema) {
		for _, s := range list {
			if s != nil {
				each(s)
			}
		}
	}
	for _, s := range sub.Properties {
		one(s)
	}
	for _, s := range sub.PatternProperties {
		one(s)
	}
	one(sub.PropertyNames, sub.UnevaluatedProperties, sub.Contains, sub.UnevaluatedItems, sub.Items2020)
	one(sub.PrefixItems...)
	for _, x := range []any{sub.AdditionalProperties, sub.Items, sub.AdditionalItems} {
		switch x := x.(type) {
		case *jsonschema.Schema:
			one(x)
		case []*jsonschema.Schema:
			one(x...)
		}
	}
}

// sized counts what a schema unfolds to. spread is the number of subschemas that one value is checked against; bulk is
// the sum over all values, one for each place; rings says that a value can lead back to the schema it came from.
type sized struct {
	spread map[*jsonschema.Schema]int
	bulk   map[*jsonschema.Schema]int
	rings  bool
	err    error
	at     string
}

func (m *sized) refuse(sub *jsonschema.Schema, why string) {
	if m.err == nil {
		m.at, m.err = place(sub), errors.New(why)
	}
}

// measure refuses a schema that refers to itself at the same value, and one that unfolds to more than the limits.
func (s *schema) measure() {
	m := &sized{spread: map[*jsonschema.Schema]int{}, bulk: map[*jsonschema.Schema]int{}}
	s.bulk = m.count(s.root)
	s.rings = m.rings
	if m.err != nil {
		s.at, s.err = m.at, m.err
	}
}

func (m *sized) wide(sub *jsonschema.Schema) int {
	switch n := m.spread[sub]; {
	case n > 0:
		return n
	case n < 0:
		m.refuse(sub, "the subschema refers to itself without end")
		return 1
	}
	m.spread[sub] = -1
	n := 1
	onward(sub, func(x *jsonschema.Schema) { n = min(n+m.wide(x), maxSpread+1) })
	m.spread[sub] = n
	if n > maxSpread {
		m.refuse(sub, fmt.Sprintf("the subschema unfolds to more than %d others", maxSpread))
	}
	return n
}

func (m *sized) count(sub *jsonschema.Schema) int {
	switch n := m.bulk[sub]; {
	case n > 0:
		return n
	case n < 0:
		m.rings = true
		return 1
	}
	m.bulk[sub] = -1
	m.wide(sub)
	n := 1
	add := func(x *jsonschema.Schema) { n = min(n+m.count(x), maxCost+1) }
	if m.err == nil {
		onward(sub, add)
		inward(sub, add)
	}
	m.bulk[sub] = n
	return n
}

// weigher counts how often a subschema is checked against a value. It remembers results, so counting is fast even where
// checking would not be.
type weigher struct {
	known map[weighed]int
	tasks int
}

type weighed struct {
	sub *jsonschema.Schema
	v   *value
}

// weigh is the number of steps it takes to check v against sub, at most maxCost+1. An upper bound that costs little is
// returned instead if it is at most rough.
func (s *schema) weigh(sub *jsonschema.Schema, v *value, rough int) int {
	if n := v.count(); !s.rings && s.bulk <= rough/n {
		return s.bulk * n
	}
	return (&weigher{known: map[weighed]int{}}).weigh(sub, v)
}

func (w *weigher) weigh(sub *jsonschema.Schema, v *value) int {
	key := weighed{sub, v}
	if n, ok := w.known[key]; ok {
		return n
	}
	if w.tasks++; w.tasks > maxCost {
		return maxCost + 1
	}
	n := 1
	add := func(x *jsonschema.Schema, v *value) { n = min(n+w.weigh(x, v), maxCost+1) }
	onward(sub, func(x *jsonschema.Schema) { add(x, v) })
	switch v.kind {
	case kArray:
		for i, x := range v.vals {
			for _, s := range []*jsonschema.Schema{itemSchema(sub, i), sub.Contains, sub.UnevaluatedItems} {
				if s != nil {
					add(s, x)
				}
			}
		}
	case kObject:
		for i, name := range v.keys {
			w.member(sub, name, v.vals[i], add)
		}
	}
	w.known[key] = n
	return n
}

func (w *weigher) member(sub *jsonschema.Schema, name string, v *value, add func(*jsonschema.Schema, *value)) {
	found := false
	if s := sub.Properties[name]; s != nil {
		found = true
		add(s, v)
	}
	for re, s := range sub.PatternProperties {
		if re.MatchString(name) {
			found = true
			add(s, v)
		}
	}
	if s, ok := sub.AdditionalProperties.(*jsonschema.Schema); ok && !found {
		add(s, v)
	}
	if sub.UnevaluatedProperties != nil {
		add(sub.UnevaluatedProperties, v)
	}
	if sub.PropertyNames != nil {
		add(sub.PropertyNames, emptyText)
	}
}

var emptyText = newString("")

// count is the number of values in v, including v.
func (v *value) count() int {
	n := 1
	for _, x := range v.vals {
		n += x.count()
	}
	return n
}

// pattern is a regular expression with bounded work: Go's engine takes time proportional to text and program.
type pattern struct {
	*regexp.Regexp
	size int
}

// MatchString is false for a text that is too long to be searched.
func (p pattern) MatchString(s string) bool {
	return len(s) <= maxMatch/p.size && p.Regexp.MatchString(s)
}

// readPattern compiles a pattern; ok is false if Go cannot read it or it is too large to be run.
func readPattern(source string) (p pattern, ok bool) {
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return p, false
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil || len(prog.Inst) > maxPattern {
		return p, false
	}
	re, err := regexp.Compile(source)
	return pattern{re, len(prog.Inst)}, err == nil
}
