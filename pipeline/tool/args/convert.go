package args

import (
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// to converts a value by the specification's table of types and the extended rules. It returns nil and the reason if
// the value cannot become the type.
func (r *run) to(target string, v *value, limits intRange) (n *value, rule, why string) {
	switch target {
	case "string":
		if v.kind == kNumber || v.kind == kBool {
			return newString(string(v.raw)), RuleToString, ""
		}
	case "integer":
		return r.toInteger(v, limits)
	case "number":
		return r.toNumber(v)
	case "boolean":
		if v.kind == kString {
			s := v.str
			if r.extended {
				s = strings.TrimSpace(s)
			}
			if strings.EqualFold(s, "true") || strings.EqualFold(s, "false") {
				return newBool(strings.EqualFold(s, "true")), RuleToBoolean, ""
			}
		}
	case "array", "object":
		if v.kind == kString && r.extended {
			x, err := parseValue([]byte(strings.TrimSpace(v.str)))
			if err == nil && kindNames[x.kind] == target {
				return x, RuleFromJSON, ""
			}
		}
		if target == "array" && r.extended && r.o.WrapScalars && v.kind < kArray {
			return &value{kind: kArray, vals: []*value{v}}, RuleWrapped, ""
		}
	}
	return nil, "", ""
}

func (r *run) toInteger(v *value, limits intRange) (n *value, rule, why string) {
	var d decimal
	ok := false
	switch v.kind {
	case kNumber:
		d, ok = decimalOf(string(v.raw))
		if ok && !d.whole() {
			return nil, "", "it is not whole"
		}
	case kString:
		s := trim(v.str)
		plainInt := digits(strings.TrimLeft(s, "+-"))
		if d, ok = decimalOf(s); ok && !plainInt && !r.extended {
			return nil, "", "a text must be plain digits"
		}
		ok = ok && d.whole()
	}
	if !ok {
		return nil, "", ""
	}
	if !limits.holds(d) {
		return nil, "", "out of " + limits.name + " range"
	}
	return newNumber(d.int().String()), RuleToInteger, ""
}

func (r *run) toNumber(v *value) (n *value, rule, why string) {
	switch v.kind {
	case kNumber:
		return v, "", ""
	case kString:
		if d, ok := decimalOf(trim(v.str)); ok {
			return newNumber(d.text()), RuleToNumber, ""
		}
		return nil, "", "not a decimal number"
	}
	return nil, "", ""
}

// trim is Java's trim: it removes everything up to U+0020. White space of Unicode goes too.
func trim(s string) string {
	return strings.TrimSpace(strings.TrimFunc(s, func(r rune) bool { return r <= ' ' }))
}

// spell finds the member of an enumeration that a text means: trimmed and in any case, or a number written as text.
// There must be exactly one.
func (r *run) spell(sub *jsonschema.Schema, v *value, at string) *value {
	var members []any
	if sub.Const != nil {
		members = []any{*sub.Const}
	} else {
		members = sub.Enum.Values
	}
	var found *value
	for _, m := range members {
		x := fromPlain(m)
		if string(x.canonical(nil)) == string(v.canonical(nil)) {
			return v
		}
		if !means(v, x) {
			continue
		}
		if found != nil {
			return v
		}
		found = x
	}
	if found == nil {
		return v
	}
	r.changed(at, v, found, RuleEnum)
	return found
}

func means(v, member *value) bool {
	switch {
	case v.kind == kString && member.kind == kString:
		return strings.EqualFold(strings.TrimSpace(v.str), strings.TrimSpace(member.str))
	case v.kind == kString && member.kind == kNumber:
		a, ok := decimalOf(trim(v.str))
		b, _ := decimalOf(string(member.raw))
		return ok && a == b
	case v.kind == kNumber && member.kind == kString:
		a, _ := decimalOf(string(v.raw))
		b, ok := decimalOf(trim(member.str))
		return ok && a == b
	}
	return false
}

// branches handles anyOf and oneOf. A value that one of them accepts stays as it is. Otherwise "X or null" is treated
// as X. Under the extended rules each branch is tried on a copy; if the value then fits exactly one, that one is taken.
func (r *run) branches(sub *jsonschema.Schema, v *value, at string) *value {
	all := slices.Concat(sub.AnyOf, sub.OneOf)
	if !r.afford(sub, v) {
		return v // validate says what is wrong
	}
	x := v.plain()
	var real []*jsonschema.Schema
	taken := false
	for _, b := range all {
		taken = taken || b.Validate(x) == nil
		if t := resolve(b).Types; t == nil || !slices.Equal(t.ToStrings(), []string{"null"}) {
			real = append(real, b)
		}
	}
	if v.kind == kNull || taken && len(real) != 1 {
		return v // a single branch besides null is always fitted, for the range of its integers
	}
	if len(real) == 1 {
		before := len(r.issues)
		v = r.fit(real[0], v, at, 1)
		if len(real) < len(all) {
			for i := before; i < len(r.issues); i++ {
				if r.issues[i].Path == at && r.issues[i].Expected != "" {
					was := r.issues[i].Expected
					r.issues[i].Expected = was + " or null"
					r.issues[i].Message = strings.Replace(r.issues[i].Message,
						"expected "+was, "expected "+was+" or null", 1)
				}
			}
		}
		return v
	}
	if !r.extended {
		return v
	}
	var found *value
	var with *run
	for _, b := range discriminate(real, v) {
		if r.budget.used++; r.budget.used > maxTrials || !r.afford(b, v) {
			return v
		}
		try := &run{s: r.s, o: r.o, extended: true, budget: r.budget}
		n := try.fit(b, v, at, 1)
		if len(try.issues) > 0 || b.Validate(n.plain()) != nil {
			continue
		}
		if found != nil && string(found.canonical(nil)) != string(n.canonical(nil)) {
			return v // it can be read in two ways, so it is left
		}
		found, with = n, try
	}
	if found == nil {
		return v
	}
	r.changes, r.defaults = append(r.changes, with.changes...), append(r.defaults, with.defaults...)
	return found
}

// discriminate keeps the branches whose const (or one-valued enum) properties match the object, if there are any.
func discriminate(branches []*jsonschema.Schema, v *value) []*jsonschema.Schema {
	if v.kind != kObject {
		return branches
	}
	var hit []*jsonschema.Schema
	for _, b := range branches {
		match, miss := tagged(resolve(b), v)
		if match && !miss {
			hit = append(hit, b)
		}
	}
	if len(hit) > 0 {
		return hit
	}
	return branches
}

func tagged(b *jsonschema.Schema, v *value) (match, miss bool) {
	for name, p := range b.Properties {
		p = resolve(p)
		if p.Const == nil && (p.Enum == nil || len(p.Enum.Values) != 1) {
			continue
		}
		x := v.get(name)
		if x == nil {
			continue
		}
		if p.Validate(x.plain()) == nil {
			match = true
		} else {
			miss = true
		}
	}
	return match, miss
}

func itoa(i int) string { return strconv.Itoa(i) }
