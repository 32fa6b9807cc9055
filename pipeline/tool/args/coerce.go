package args

import (
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// run is the state of one parse.
type run struct {
	s        *schema
	o        Options
	extended bool
	changes  []Change
	issues   []Issue
	defaults []string // pointers of values that are defaults: never coerced, never blamed on the model
	budget   *trialBudget
}

// trialBudget bounds how many branches of anyOf and oneOf are tried in one parse, all levels together, and what it may
// cost to find the one that fits.
type trialBudget struct{ used, cost int }

// afford reports whether a value may still be checked against the branches of a subschema.
func (r *run) afford(sub *jsonschema.Schema, v *value) bool {
	r.budget.cost += r.s.weigh(sub, v, maxCost/50)
	return r.budget.cost <= maxCost
}

func tooMuch(at string) Issue {
	return Issue{
		Code: CodeTooComplex, Path: at, Expected: "a smaller or flatter value",
		Message: fmt.Sprintf("checking this against the tool's schema would take more than %d steps; "+
			"send less, or nest it less deeply", maxCost),
	}
}

const maxTrials = 512

func (r *run) changed(at string, from, to *value, rule string) {
	c := Change{Path: at, Rule: rule}
	if from != nil {
		c.From = Clip(string(from.write(nil)))
	}
	if to != nil {
		c.To = Clip(string(to.write(nil)))
	}
	r.changes = append(r.changes, c)
}

func (r *run) fail(i Issue) { r.issues = append(r.issues, i) }

// arguments runs the two passes of the specification over the top level, then checks the result against the schema.
func (r *run) arguments(obj *value) *value {
	if r.o.Coercion == Off {
		r.validate(obj)
		return obj
	}
	d := r.s.declared(resolve(r.s.root))
	obj = r.unwrap(d, obj)
	obj = r.meant(obj, "", d.order, func(name string) bool {
		_, takes := d.other(name)
		return d.subs[name] == nil && !takes
	})
	r.required(d, obj)
	if len(r.issues) > 0 && !r.extended {
		r.others(d, obj, nil)
		return obj // nothing is coerced before everything required is there
	}
	out := &value{kind: kObject}
	for _, name := range d.order {
		sub, v, at := d.subs[name], obj.get(name), pointer("", name)
		if v == nil || v.kind == kNull && !r.s.admitsNull(sub) {
			if def := r.s.defaultOf(sub); def != nil {
				out.set(name, def)
				r.defaults = append(r.defaults, at)
				r.changed(at, v, def, RuleDefault)
			} else if v != nil && sub.Validate(nil) == nil && r.s.extra(sub).unknown == "" {
				out.set(name, v) // the property takes anything
			} else if v != nil {
				r.changed(at, v, nil, RuleNull)
			}
			continue
		}
		out.set(name, r.fit(sub, v, at, 0))
	}
	r.others(d, obj, out)
	root := resolve(r.s.root)
	if len(r.issues) == 0 && r.extended && (len(root.AnyOf) > 0 || len(root.OneOf) > 0) {
		out = r.branches(root, out, "")
	}
	r.validate(out)
	return out
}

// others handles the names that no property declares. Those that are kept go into out, unless it is nil.
func (r *run) others(d *declaration, obj, out *value) {
	for i, name := range obj.keys {
		if _, declared := d.subs[name]; declared {
			continue
		}
		sub, takes := d.other(name)
		if (takes || r.stray(name, obj.vals[i], pointer("", name), d.order)) && out != nil {
			out.set(name, r.fit(sub, obj.vals[i], pointer("", name), 0))
		}
	}
}

// required is the first pass: every required name must be there, and neither null nor blank. What the schema says comes
// first: a null is fine where it names null, and a blank text where it says minLength 0.
func (r *run) required(d *declaration, obj *value) {
	for _, name := range d.required {
		sub, v := d.subs[name], obj.get(name)
		issue := Issue{Parameter: name, Path: pointer("", name), Expected: r.s.describe(sub)}
		switch {
		case v == nil:
			issue.Code = CodeMissing
			issue.Message = "required, but it is missing" + wants(issue.Expected) + sentAs(name, obj, d.named())
		case v.kind == kNull && !r.s.admitsNull(sub), v.kind == kString && blank(v.str) && !r.blankAllowed(name, sub, v):
			issue.Code, issue.Got = CodeNullOrEmpty, got(v)
			issue.Message = "required, but it is " + got(v) + wants(issue.Expected)
		default:
			continue
		}
		r.fail(issue)
	}
}

func wants(expected string) string {
	if expected == "" {
		return ""
	}
	return "; expected " + expected
}

func (r *run) blankAllowed(name string, sub *jsonschema.Schema, v *value) bool {
	if slices.Contains(r.o.AllowBlank, name) {
		return true
	}
	if sub == nil {
		return false
	}
	if n := resolve(sub).MinLength; n != nil && *n == 0 {
		return true
	}
	if sub.Const != nil || sub.Enum != nil {
		return sub.Validate(v.plain()) == nil
	}
	return false
}

// fit makes one value fit its subschema where a rule allows it, and descends. A value that the schema accepts is never
// touched; one that no rule helps is reported and left as it is.
func (r *run) fit(sub *jsonschema.Schema, v *value, at string, hops int) *value {
	if sub == nil || hops > 16 {
		return v
	}
	if name := r.s.extra(sub).unknown; name != "" {
		if v.kind != kNull {
			r.fail(Issue{
				Path: at, Code: CodeTypeMismatch, Expected: name, Got: got(v),
				Message: "unknown target type '" + name + "' in the tool's schema; no value can be given",
			})
		}
		return v
	}
	was := v
	if sub.Ref != nil {
		v = r.fit(sub.Ref, v, at, hops+1)
	}
	for _, s := range sub.AllOf {
		v = r.fit(s, v, at, hops+1)
	}
	if sub.Types != nil {
		v = r.convert(sub, v, at)
	}
	if r.extended && (sub.Enum != nil || sub.Const != nil) {
		v = r.spell(sub, v, at)
	}
	if len(sub.AnyOf) > 0 || len(sub.OneOf) > 0 {
		v = r.branches(sub, v, at)
	}
	if v != was && was.kind == kString && v.kind >= kArray { // JSON that was in a text was not weighed yet
		if !r.afford(sub, v) {
			r.fail(tooMuch(at))
			return was
		}
	}
	switch v.kind {
	case kArray:
		return r.items(sub, v, at)
	case kObject:
		return r.members(sub, v, at)
	}
	return v
}

// convert takes a value of the wrong type to a type that the schema names.
func (r *run) convert(sub *jsonschema.Schema, v *value, at string) *value {
	types := sub.Types.ToStrings()
	if v.kind == kNull {
		return v
	}
	limits := rangeOf(r.s.extra(sub).format, r.bits())
	var targets []string
	for _, t := range types {
		if t == kindNames[v.kind] {
			return v
		}
		if t != "null" {
			targets = append(targets, t)
		}
	}
	if one := r.alone(sub, v); one != nil {
		r.changed(at, v, one, RuleWrapped)
		return one
	}
	if d, ok := decimalOf(string(v.raw)); v.kind == kNumber && ok && d.whole() && slices.Contains(targets, "integer") {
		targets = []string{"integer"}
	}
	if slices.Contains(targets, "integer") && slices.Contains(targets, "number") {
		targets = slices.DeleteFunc(targets, func(t string) bool { return t == "integer" })
	}
	var best *value
	rule, why := "", ""
	for _, t := range targets {
		n, ru, reason := r.to(t, v, limits)
		switch {
		case n == nil && why == "":
			why = reason
		case n != nil && best != nil:
			best, why = nil, "it could be read in more than one way"
			targets = nil
		case n != nil && targets != nil:
			best, rule = n, ru
		}
	}
	if best == nil {
		expected := strings.Join(types, " or ")
		r.fail(Issue{Path: at, Code: CodeTypeMismatch, Expected: expected, Got: got(v), Message: mismatch(expected, v, why)})
		return v
	}
	if rule != "" && string(best.write(nil)) != string(v.write(nil)) {
		r.changed(at, v, best, rule)
	}
	return best
}

// alone wraps an object in an array where an array of objects is wanted (extended rules); else it returns nil.
func (r *run) alone(sub *jsonschema.Schema, v *value) *value {
	if !r.extended || v.kind != kObject || !slices.Contains(sub.Types.ToStrings(), "array") {
		return nil
	}
	item := resolve(itemSchema(sub, 0))
	if item == nil || item.Types == nil || !slices.Contains(item.Types.ToStrings(), "object") {
		return nil
	}
	return &value{kind: kArray, vals: []*value{v}}
}

func mismatch(expected string, v *value, why string) string {
	m := "expected " + expected + ", got " + got(v)
	if why != "" {
		m += " (" + why + ")"
	}
	return m
}

func (r *run) bits() int {
	if r.o.IntegerBits == 32 {
		return 32
	}
	return 64
}

func (r *run) items(sub *jsonschema.Schema, v *value, at string) *value {
	out := v
	for i, x := range v.vals {
		item := itemSchema(sub, i)
		if item == nil {
			continue
		}
		n := r.fit(item, x, pointer(at, itoa(i)), 0)
		if n != x {
			if out == v {
				out = &value{kind: kArray, vals: slices.Clone(v.vals)}
			}
			out.vals[i] = n
		}
	}
	return out
}

func itemSchema(sub *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(sub.PrefixItems) {
		return sub.PrefixItems[i]
	}
	if sub.Items2020 != nil {
		return sub.Items2020
	}
	switch items := sub.Items.(type) {
	case *jsonschema.Schema:
		return items
	case []*jsonschema.Schema:
		if i < len(items) {
			return items[i]
		}
		more, _ := sub.AdditionalItems.(*jsonschema.Schema)
		return more
	}
	return nil
}

// members fits the members of a nested object. Names that additionalProperties: false forbids are left out. Under the
// extended rules, so is a null for an optional member.
func (r *run) members(sub *jsonschema.Schema, v *value, at string) *value {
	closed := sub.AdditionalProperties == false
	more, _ := sub.AdditionalProperties.(*jsonschema.Schema)
	if len(sub.Properties) == 0 && len(sub.PatternProperties) == 0 && !closed && more == nil {
		return v
	}
	if closed {
		v = r.meant(v, at, r.s.extra(sub).names, func(name string) bool {
			return sub.Properties[name] == nil && byPattern(sub, name) == nil
		})
	}
	out := &value{kind: kObject}
	same := true
	for i, name := range v.keys {
		x, here := v.vals[i], pointer(at, name)
		child := sub.Properties[name]
		if child == nil {
			child = byPattern(sub, name)
		}
		if child == nil && closed {
			if same = same && r.o.Undeclared == Pass; r.stray(name, x, here, r.s.extra(sub).names) {
				out.set(name, x)
			}
			continue
		}
		if child == nil {
			child = more
		}
		optional := child != nil && !slices.Contains(sub.Required, name)
		if x.kind == kNull && r.extended && optional && !r.s.admitsNull(child) && child.Validate(nil) != nil {
			same = false
			if def := r.s.defaultOf(child); def != nil {
				out.set(name, def)
				r.defaults = append(r.defaults, here)
				r.changed(here, x, def, RuleDefault)
				continue
			}
			r.changed(here, x, nil, RuleNull)
			continue
		}
		n := r.fit(child, x, here, 0)
		same = same && n == x
		out.set(name, n)
	}
	if same {
		return v
	}
	return out
}

func byPattern(sub *jsonschema.Schema, name string) *jsonschema.Schema {
	best := "" // the first pattern in order, so that the result does not depend on the order of a map
	var found *jsonschema.Schema
	for re, s := range sub.PatternProperties {
		if re.MatchString(name) && (found == nil || re.String() < best) {
			best, found = re.String(), s
		}
	}
	return found
}
