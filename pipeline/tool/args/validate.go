package args

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/shallot-nats/shallot/messages"
)

// validate checks the result against the whole schema and adds what is still wrong, each thing once.
func (r *run) validate(v *value) {
	if r.s.weigh(r.s.root, v, maxCost) > maxCost {
		if len(r.issues) == 0 {
			r.fail(tooMuch(""))
		}
		return
	}
	err := r.s.root.Validate(v.plain())
	var top *jsonschema.ValidationError
	if !errors.As(err, &top) {
		return
	}
	known, said := map[string]bool{}, map[[2]string]bool{}
	for _, i := range r.issues {
		known[i.Path] = true
	}
	for _, i := range r.leaves(top, v, 0) {
		one := [2]string{i.Path, i.Message} // one place can have several faults
		if said[one] || r.covered(i.Path, known) {
			continue
		}
		said[one] = true
		r.fail(i)
	}
	slices.SortStableFunc(r.issues, func(a, b Issue) int {
		if a.Path == b.Path {
			return strings.Compare(a.Message, b.Message)
		}
		return r.compare(v, a.Path, b.Path)
	})
}

// covered reports whether the place, or one above it, has an issue already, or holds a default that the model did not
// write.
func (r *run) covered(path string, known map[string]bool) bool {
	for at := path; ; {
		if known[at] && (at != "" || path == "") || slices.Contains(r.defaults, at) {
			return true
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			return false
		}
		at = at[:i]
	}
}

// compare orders places as the arguments have them (which is the order of the schema). Missing names come last.
func (r *run) compare(v *value, a, b string) int {
	return slices.Compare(r.position(v, a), r.position(v, b))
}

func (r *run) position(v *value, path string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		name := unpoint(part)
		i := -1
		if v != nil && v.kind == kObject {
			i = v.find(name)
		} else if v != nil && v.kind == kArray {
			fmt.Sscan(name, &i)
		}
		if v == nil || i < 0 || i >= len(v.vals) {
			return append(out, 1<<20)
		}
		out = append(out, i)
		v = v.vals[i]
	}
	return out
}

func at(path []string) string {
	out := ""
	for _, p := range path {
		out = pointer(out, p)
	}
	return out
}

// leaves turns the library's tree of errors into a flat list.
func (r *run) leaves(e *jsonschema.ValidationError, root *value, hops int) []Issue {
	if hops > 4*MaxDepth {
		return nil
	}
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return r.union(e, root, hops)
	}
	if len(e.Causes) == 0 {
		return r.leaf(e, root)
	}
	var out []Issue
	for _, c := range e.Causes {
		out = append(out, r.leaves(c, root, hops+1)...)
	}
	return out
}

// union folds the branches of anyOf and oneOf into one sentence if every branch wants another type, or into the issues
// of the branch that was meant if there is only one; else it says that no form fits.
func (r *run) union(e *jsonschema.ValidationError, root *value, hops int) []Issue {
	here := at(e.InstanceLocation)
	v := follow(root, e.InstanceLocation)
	var wanted []string
	var meant []*jsonschema.ValidationError
	for _, c := range e.Causes {
		t := typeAt(c, len(e.InstanceLocation))
		if t == nil {
			meant = append(meant, c)
			continue
		}
		for _, w := range t.Want {
			if !slices.Contains(wanted, w) {
				wanted = append(wanted, w)
			}
		}
	}
	switch {
	case len(e.Causes) == 0:
		return []Issue{{
			Path: here, Code: CodeNoMatch, Got: got(v),
			Message: "it fits more than one of the allowed forms; it must fit exactly one",
		}}
	case len(meant) == 0:
		want := orList(wanted)
		return []Issue{{
			Path: here, Code: CodeTypeMismatch, Expected: want, Got: got(v), Message: mismatch(want, v, ""),
		}}
	case len(meant) == 1:
		return r.leaves(meant[0], root, hops+1)
	}
	var allowed []json.RawMessage
	best, fitting := -1, 0
	for i, c := range meant {
		if tagFails(c, len(e.InstanceLocation)) {
			continue
		}
		fitting++
		best = i
	}
	if fitting == 1 {
		return r.leaves(meant[best], root, hops+1)
	}
	var reasons []string
	for _, c := range meant {
		for _, l := range r.leaves(c, root, hops+1) {
			allowed = append(allowed, l.Allowed...)
			m := strings.TrimPrefix(strings.TrimPrefix(l.Path, here)+": "+l.Message, ": ")
			if m = messages.Clip(m, 300); !slices.Contains(reasons, m) && len(reasons) < 6 {
				reasons = append(reasons, m)
			}
		}
	}
	said := fmt.Sprintf("%s fits none of the %d allowed forms: %s", got(v), len(e.Causes), strings.Join(reasons, "; or "))
	return []Issue{{Path: here, Code: CodeNoMatch, Got: got(v), Allowed: allowed, Message: said}}
}

// typeAt finds a type error at the given depth of the value, which means that the branch is for another kind of value.
func typeAt(e *jsonschema.ValidationError, depth int) *kind.Type {
	if t, ok := e.ErrorKind.(*kind.Type); ok && len(e.InstanceLocation) == depth {
		return t
	}
	for _, c := range e.Causes {
		if t := typeAt(c, depth); t != nil {
			return t
		}
	}
	return nil
}

// tagFails reports whether a branch fails at a const directly below, and so is not the branch that was meant.
func tagFails(e *jsonschema.ValidationError, depth int) bool {
	if _, ok := e.ErrorKind.(*kind.Const); ok && len(e.InstanceLocation) == depth+1 {
		return true
	}
	return slices.ContainsFunc(e.Causes, func(c *jsonschema.ValidationError) bool { return tagFails(c, depth) })
}

func follow(v *value, path []string) *value {
	for _, p := range path {
		i := -1
		switch {
		case v.kind == kObject:
			i = v.find(p)
		case v.kind == kArray:
			fmt.Sscan(p, &i)
		}
		if i < 0 || i >= len(v.vals) {
			break
		}
		v = v.vals[i]
	}
	return v
}

func (r *run) leaf(e *jsonschema.ValidationError, root *value) []Issue {
	here, v := at(e.InstanceLocation), follow(root, e.InstanceLocation)
	one := func(code, expected, format string, args ...any) []Issue {
		return []Issue{{Path: here, Code: code, Expected: expected, Got: got(v), Message: fmt.Sprintf(format, args...)}}
	}
	bound := func(word string, n *big.Rat) []Issue {
		t, exact := n.FloatPrec()
		text := n.RatString()
		if exact {
			text = n.FloatString(t)
		}
		return one(CodeOutOfRange, word+" "+text, "must be %s %s, got %s", word, text, got(v))
	}
	count := func(word string, want, have int, what string) []Issue {
		return one(CodeOutOfRange, fmt.Sprintf("%s %d %s", word, want, what),
			"needs %s %d %s, has %d", word, want, what, have)
	}
	together := func(name string, missing []string) []Issue {
		list := strings.Join(missing, ", ")
		return one(CodeMissing, list, "with '%s' also needed: %s", name, list)
	}

	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return one(CodeTypeMismatch, orList(k.Want), "%s", mismatch(orList(k.Want), v, ""))
	case *kind.Required:
		var out []Issue
		for _, name := range k.Missing {
			out = append(out, Issue{Path: pointer(here, name), Code: CodeMissing, Message: "required, but it is missing"})
		}
		return out
	case *kind.AdditionalProperties:
		var out []Issue
		for _, name := range k.Properties {
			out = append(out, Issue{Path: pointer(here, name), Code: CodeUndeclared, Message: "no such name here; leave it out"})
		}
		return out
	case *kind.Enum:
		members := strings.Join(texts(k.Want), ", ")
		return allowed(one(CodeNotAllowed, "one of "+members, "must be one of %s; got %s", members, got(v)), k.Want)
	case *kind.Const:
		member := texts([]any{k.Want})[0]
		return allowed(one(CodeNotAllowed, member, "must be %s; got %s", member, got(v)), []any{k.Want})
	case *kind.Minimum:
		return bound("at least", k.Want)
	case *kind.Maximum:
		return bound("at most", k.Want)
	case *kind.ExclusiveMinimum:
		return bound("more than", k.Want)
	case *kind.ExclusiveMaximum:
		return bound("less than", k.Want)
	case *kind.MultipleOf:
		return bound("a multiple of", k.Want)
	case *kind.MinLength:
		return count("at least", k.Want, k.Got, "characters")
	case *kind.MaxLength:
		return count("at most", k.Want, k.Got, "characters")
	case *kind.MinItems:
		return count("at least", k.Want, k.Got, "items")
	case *kind.MaxItems:
		return count("at most", k.Want, k.Got, "items")
	case *kind.MinProperties:
		return count("at least", k.Want, k.Got, "members")
	case *kind.MaxProperties:
		return count("at most", k.Want, k.Got, "members")
	case *kind.UniqueItems:
		return one(CodeInvalid, "different items",
			"items %d and %d are equal; all must differ", k.Duplicates[0], k.Duplicates[1])
	case *kind.Pattern:
		return one(CodeBadFormat, "text like "+Clip(k.Want), "must match the pattern %s; got %s", Clip(k.Want), got(v))
	case *kind.Format:
		return one(CodeBadFormat, k.Want, "must be a %s; got %s", k.Want, got(v))
	case *kind.DependentRequired:
		return together(k.Prop, k.Missing)
	case *kind.Dependency:
		return together(k.Prop, k.Missing)
	}
	return one(CodeInvalid, "", "not as the schema wants it (%s); got %s",
		strings.Join(e.ErrorKind.KeywordPath(), "/"), got(v))
}

func allowed(issues []Issue, values []any) []Issue {
	for i, v := range values {
		if i == 50 {
			break
		}
		issues[0].Allowed = append(issues[0].Allowed, fromPlain(v).write(nil))
	}
	return issues
}
