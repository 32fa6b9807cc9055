package args

import (
	"slices"
	"strings"
	"unicode"

	"github.com/shallot-nats/shallot/messages"
)

// What happens to names that the schema does not declare. It declares those that its additionalProperties or
// patternProperties accept.
const (
	Auto   = "auto" // refuse for tools that change something, drop for others
	Refuse = "refuse"
	Drop   = "drop" // left out, and noted as a change
	Pass   = "pass" // the tool gets them; a closed schema still refuses them
)

// wrappers are names under which models wrap all arguments.
var wrappers = []string{"arguments", "args", "parameters", "params"}

// unwrap takes the arguments out of an object that holds nothing else, except perhaps the tool's name: {"arguments":
// {...}}. A schema that declares one of those names means it.
func (r *run) unwrap(d *declaration, obj *value) *value {
	for range 2 {
		key := ""
		for i, k := range obj.keys {
			_, takes := d.other(k)
			switch {
			case d.subs[k] != nil || takes:
				return obj
			case key == "" && slices.Contains(wrappers, k):
				key = k
			case (k == "name" || k == "tool" || k == "function") && obj.vals[i].kind == kString && obj.vals[i].str == r.o.Tool:
			default:
				return obj
			}
		}
		inner := obj.get(key)
		if inner != nil && inner.kind == kString {
			x, err := parseValue([]byte(strings.TrimSpace(inner.str)))
			if err == nil && r.s.weigh(r.s.root, x, maxCost) <= maxCost {
				inner = x
			}
		}
		if inner == nil || inner.kind != kObject {
			return obj
		}
		r.changed(pointer("", key), nil, nil, RuleUnwrapped)
		obj = inner
	}
	return obj
}

// meant renames undeclared names to the declared ones that they mean (extended rules): the same letters and digits, in
// any case and with any separators. A name that could mean two, or two that could mean one, stay.
func (r *run) meant(v *value, at string, declared []string, undeclared func(string) bool) *value {
	if !r.extended {
		return v
	}
	to := map[string]string{} // what is sent -> what it means
	for _, k := range v.keys {
		if !undeclared(k) {
			continue
		}
		same := slices.DeleteFunc(slices.Clone(declared), func(d string) bool { return fold(d) != fold(k) })
		if len(same) == 1 && v.get(same[0]) == nil && fold(k) != "" {
			to[k] = same[0]
		}
	}
	for k, d := range to {
		for other, e := range to {
			if other != k && e == d {
				delete(to, k)
				delete(to, other)
			}
		}
	}
	if len(to) == 0 {
		return v
	}
	out := &value{kind: kObject}
	for i, k := range v.keys {
		d, ok := to[k]
		if !ok {
			out.set(k, v.vals[i])
			continue
		}
		out.set(d, v.vals[i])
		r.changed(pointer(at, d), newString(k), newString(d), RuleRenamed)
	}
	return out
}

// stray handles one undeclared name; keep says that it stays.
func (r *run) stray(name string, v *value, at string, declared []string) (keep bool) {
	switch r.o.Undeclared {
	case Pass:
		return true
	case Refuse:
		known := "none"
		if len(declared) > 0 {
			known = strings.Join(first(declared, 20), ", ")
		}
		said := "there is no argument of this name, got " + got(v) + "; known: " + known
		if near := nearest(name, declared); near != "" {
			said += "; did you mean '" + near + "'?"
		}
		r.fail(Issue{Path: at, Code: CodeUndeclared, Expected: "one of " + known, Got: got(v), Message: said})
	default:
		r.changed(at, v, nil, RuleDropped)
	}
	return false
}

// sentAs names the undeclared name under which a missing argument may have been sent; empty if there is none.
func sentAs(missing string, obj *value, declared map[string]bool) string {
	for _, k := range obj.keys {
		if !declared[k] && nearest(k, []string{missing}) != "" {
			return "; '" + Clip(k) + "' was sent, did you mean that?"
		}
	}
	return ""
}

// fold is a name without case and separators.
func fold(name string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return -1
		}
		return unicode.ToLower(c)
	}, name)
}

// nearest is the declared name with the spelling closest to name; empty if none is close.
func nearest(name string, declared []string) string {
	if len(name) > 64 {
		return ""
	}
	best, at := "", 0
	for _, d := range declared {
		n := messages.Distance(fold(name), fold(d))
		if n <= min(2, len(d)/3) && (best == "" || n < at) {
			best, at = d, n
		}
	}
	return best
}

func first(list []string, n int) []string {
	if len(list) > n {
		return append(slices.Clone(list[:n]), "...")
	}
	return list
}
