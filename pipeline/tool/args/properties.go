package args

import (
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// declaration is what a schema says about the names of the top level.
type declaration struct {
	order    []string
	subs     map[string]*jsonschema.Schema
	required []string
	parts    []*jsonschema.Schema
	also     map[string]bool // named in a branch, so not undeclared; the branch says what they are
	closed   bool
	open     bool
}

func (s *schema) declared(root *jsonschema.Schema) *declaration {
	d := &declaration{subs: map[string]*jsonschema.Schema{}, also: map[string]bool{}}
	any := s.collect(d, root, true, 0)
	if !any && !d.closed {
		d.open = true // a schema that names no property says nothing about names
	}
	return d
}

// collect walks the root, what it refers to and its allOf (sure), and its branches (not sure). It reports whether any
// of them names properties.
func (s *schema) collect(d *declaration, sub *jsonschema.Schema, sure bool, hops int) bool {
	if sub == nil || hops > 16 {
		return false
	}
	named := sub.Properties != nil
	for _, name := range s.extra(sub).names {
		if !sure {
			d.also[name] = true
			continue
		}
		if d.subs[name] == nil {
			d.order = append(d.order, name)
			d.subs[name] = sub.Properties[name]
		}
	}
	if sure {
		d.parts = append(d.parts, sub)
		for _, name := range sub.Required {
			if !slices.Contains(d.required, name) {
				d.required = append(d.required, name)
			}
		}
	}
	switch a := sub.AdditionalProperties.(type) {
	case bool:
		d.open = d.open || a
		d.closed = d.closed || !a && sure
	case *jsonschema.Schema:
		d.open = true
	}
	if u := sub.UnevaluatedProperties; u != nil && (u.Bool == nil || *u.Bool) {
		d.open = true
	}
	named = s.collect(d, sub.Ref, sure, hops+1) || named
	for _, x := range sub.AllOf {
		named = s.collect(d, x, sure, hops+1) || named
	}
	for _, x := range slices.Concat(sub.AnyOf, sub.OneOf, []*jsonschema.Schema{sub.If, sub.Then, sub.Else}) {
		named = s.collect(d, x, false, hops+1) || named
	}
	for _, x := range sub.DependentSchemas {
		named = s.collect(d, x, false, hops+1) || named
	}
	return named
}

// named are the names that the schema declares, sure or not.
func (d *declaration) named() map[string]bool {
	out := maps.Clone(d.also)
	for name := range d.subs {
		out[name] = true
	}
	return out
}

// other says what happens to a name that no property declares: which subschema it must fit, and whether it is kept.
func (d *declaration) other(name string) (sub *jsonschema.Schema, keep bool) {
	patterns := false
	for _, p := range d.parts {
		if s := byPattern(p, name); s != nil {
			return s, true
		}
		patterns = patterns || len(p.PatternProperties) > 0
	}
	if d.closed {
		return nil, false
	}
	for _, p := range d.parts {
		if s, ok := p.AdditionalProperties.(*jsonschema.Schema); ok {
			return s, true
		}
	}
	return nil, d.open || d.also[name] || patterns
}

// defaultOf is a property's default as it was written. null counts as no default.
func (s *schema) defaultOf(sub *jsonschema.Schema) *value {
	for range 16 {
		if sub == nil {
			return nil
		}
		if f := s.extra(sub).fixed; f != nil {
			return f
		}
		sub = sub.Ref
	}
	return nil
}

// admitsNull reports whether a subschema names null as a value: in a type, a const, an enumeration or a branch.
func (s *schema) admitsNull(sub *jsonschema.Schema) bool { return admitsNull(sub, 0) }

func admitsNull(sub *jsonschema.Schema, hops int) bool {
	if sub == nil || hops > 16 {
		return false
	}
	if sub.Const != nil && *sub.Const == nil || sub.Enum != nil && slices.Contains(kindsOf(sub.Enum.Values), "null") {
		return true
	}
	if sub.Types != nil && sub.Enum == nil && slices.Contains(sub.Types.ToStrings(), "null") {
		return true
	}
	for _, b := range slices.Concat(sub.AnyOf, sub.OneOf, []*jsonschema.Schema{sub.Ref}) {
		if admitsNull(b, hops+1) {
			return true
		}
	}
	return false
}

func kindsOf(values []any) []string {
	var out []string
	for _, v := range values {
		switch v.(type) {
		case nil:
			out = append(out, "null")
		case string:
			out = append(out, "string")
		case bool:
			out = append(out, "boolean")
		case json.Number:
			out = append(out, "number")
		}
	}
	return out
}

// describe says in words what a subschema accepts; empty if that is anything.
func (s *schema) describe(sub *jsonschema.Schema) string { return s.words(sub, 0) }

func (s *schema) words(sub *jsonschema.Schema, hops int) string {
	if sub == nil || hops > 8 {
		return ""
	}
	if name := s.extra(sub).unknown; name != "" {
		return name
	}
	switch {
	case sub.Const != nil:
		return Clip(string(fromPlain(*sub.Const).write(nil)))
	case sub.Enum != nil:
		return "one of " + strings.Join(texts(sub.Enum.Values), ", ")
	case sub.Types != nil:
		return orList(sub.Types.ToStrings())
	case sub.Ref != nil:
		return s.words(sub.Ref, hops+1)
	}
	var out []string
	for _, b := range slices.Concat(sub.AnyOf, sub.OneOf) {
		if w := s.words(b, hops+1); w != "" && !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return orList(out)
}

// orList joins words as "a, b or c", null last.
func orList(in []string) string {
	out := slices.DeleteFunc(slices.Clone(in), func(s string) bool { return s == "null" })
	if len(out) < len(in) {
		out = append(out, "null")
	}
	if len(out) < 2 {
		return strings.Join(out, "")
	}
	return strings.Join(out[:len(out)-1], ", ") + " or " + out[len(out)-1]
}

// texts writes the first 20 members of an enumeration.
func texts(values []any) []string {
	var out []string
	for i, v := range values {
		if i == 20 {
			return append(out, "...")
		}
		out = append(out, Clip(string(fromPlain(v).write(nil))))
	}
	return out
}

func sortedIndex(keys []string) []int {
	at := make([]int, len(keys))
	for i := range at {
		at[i] = i
	}
	sort.Slice(at, func(a, b int) bool { return keys[at[a]] < keys[at[b]] })
	return at
}
