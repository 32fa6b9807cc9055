package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoder reads nodes into structs. It goes on after a problem, so that one run reports them all.
type decoder struct {
	*source
	sections map[string]any
	stages   map[string][]string // built-in stages by kind
	known    []setting           // every key, for "it belongs to ..."
	at       map[string]*node    // where each key that was given stands
	meant    map[string]bool     // keys that were misspelled: they are not missing too
}

// problems is several as one error, for unmarshalers that decode in steps.
type problems []*Problem

func (p problems) Error() string { return p[0].Text }

// want reports a value of the wrong type. Text from a variable of the file, and secrets, are not shown.
func (d *decoder) want(n *node, path string, f field, what string) {
	got := n.kind.String()
	switch {
	case f.secret || secretKey(path[strings.LastIndex(path, ".")+1:]):
	case n.loose && n.source == "":
		got = "the text of a variable"
	case n.kind == text && len(n.text) > 60:
	case n.kind == text:
		got = fmt.Sprintf("the text %q", n.text)
	case n.kind != null && n.text != "":
		got = n.text
	}
	d.bad(n.place, path, "want %s, got %s", what, got)
}

// value reads n into v. What is not given keeps its default; lists and maps are replaced whole.
func (d *decoder) value(n *node, v reflect.Value, path string, f field) {
	if path != "" {
		d.at[path] = n
	}
	t := v.Type()
	f.secret = f.secret || t == secretType || t == urlType
	switch {
	case t.Kind() == reflect.Pointer && n.kind == null:
		v.SetZero()
		return
	case t.Kind() == reflect.Pointer:
		p := reflect.New(t.Elem())
		if !v.IsNil() {
			p.Elem().Set(v.Elem())
		}
		d.value(n, p.Elem(), path, f)
		v.Set(p)
		return
	case d.own(n, v.Addr().Interface(), path, f):
		return
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice:
		given := n
		if n = n.shaped(t); n == nil {
			d.bad(given.place, path, "the value is not readable as YAML")
			return
		}
	}
	switch {
	case t == rawType:
		var b bytes.Buffer
		n.json(&b)
		v.SetBytes(b.Bytes())
	case t.Kind() == reflect.Struct:
		d.record(n, v, path)
	case t.Kind() == reflect.Map:
		d.table(n, v, path, f)
	case t.Kind() == reflect.Slice:
		d.list(n, v, path, f)
	default:
		d.scalar(n, v, path, f)
	}
}

// own lets a type read itself, and reports whether it can.
func (d *decoder) own(n *node, target any, path string, f field) bool {
	var err error
	switch u := target.(type) {
	case yamlFuncUnmarshaler:
		err = u.UnmarshalYAML(func(into any) error {
			p := reflect.ValueOf(into)
			if p.Kind() != reflect.Pointer || p.IsNil() {
				return fmt.Errorf("cannot decode into %T", into)
			}
			before := d.found
			d.found = nil
			d.value(n, p.Elem(), path, field{secret: f.secret})
			tried := problems(d.found)
			d.found = before
			if len(tried) > 0 {
				return tried
			}
			return nil
		})
	case encoding.TextUnmarshaler:
		if n.kind == mapping || n.kind == sequence || n.kind == null {
			d.want(n, path, f, "text")
			return true
		}
		err = u.UnmarshalText([]byte(n.text))
	default:
		return false
	}
	var several problems
	switch {
	case errors.As(err, &several):
		d.found = append(d.found, several...)
	case err != nil && (f.secret || n.loose && n.source == ""):
		d.bad(n.place, path, "the value of the variable is refused: %s", strings.ReplaceAll(err.Error(), n.text, hidden))
	case err != nil:
		d.bad(n.place, path, "%v", err)
	}
	return true
}

// record reads the keys of a struct. Those of [Interceptors] are the stages' sections.
func (d *decoder) record(n *node, v reflect.Value, path string) {
	if n.kind == null {
		return // "http:" with nothing below it changes nothing
	}
	if n.kind != mapping {
		d.want(n, path, field{}, "a mapping of keys")
		return
	}
	fs := fields(v.Type())
	known, what := names(fs), "key"
	if v.Type() == interType {
		known, what = sortedKeys(d.sections), "stage"
	}
	for _, e := range n.entries {
		i := slices.Index(known, e.key)
		switch {
		case i < 0:
			d.unknown(e, path, known, what)
		case v.Type() == interType:
			d.value(e.value, reflect.ValueOf(d.sections[e.key]).Elem(), dot(path, e.key), field{})
		default:
			d.value(e.value, v.FieldByIndex(fs[i].index), dot(path, e.key), fs[i])
		}
	}
}

func (d *decoder) unknown(e entry, path string, known []string, what string) {
	text := "unknown " + what
	meant := suggest(e.key, known)
	d.meant[dot(path, meant)] = true
	if meant != "" && strings.EqualFold(meant, e.key) {
		text = fmt.Sprintf("wrong case; write %s", meant)
	} else if meant != "" {
		text += fmt.Sprintf("; did you mean %s?", meant)
	} else if i := slices.IndexFunc(d.known, func(k setting) bool { return k.path[len(k.path)-1] == e.key }); i >= 0 {
		text += fmt.Sprintf("; there is %s", strings.Join(d.known[i].path, "."))
	}
	if len(known) > 0 {
		if !strings.HasSuffix(text, "?") {
			text += "."
		}
		text += " Known here: " + list(known)
	}
	key := e.key
	if len(key) > 80 {
		key = key[:80] + "..."
	}
	d.bad(e.place, dot(path, printable(key)), "%s", text)
}

func (d *decoder) table(n *node, v reflect.Value, path string, f field) {
	t := v.Type()
	m := reflect.MakeMap(t)
	switch {
	case n.kind == null:
	case n.kind != mapping || t.Key().Kind() != reflect.String:
		d.want(n, path, f, "a mapping")
		return
	}
	for _, e := range n.entries {
		x := d.fresh(e.value, t.Elem(), dot(path, e.key), f)
		m.SetMapIndex(reflect.ValueOf(e.key).Convert(t.Key()), x)
	}
	v.Set(m)
}

func (d *decoder) list(n *node, v reflect.Value, path string, f field) {
	t := v.Type()
	out := reflect.MakeSlice(t, 0, len(n.items))
	switch {
	case n.kind == null:
	case n.kind != sequence:
		d.want(n, path, f, "a list, such as [a, b]")
		return
	}
	for i, item := range n.items {
		out = reflect.Append(out, d.fresh(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i), f))
	}
	v.Set(out)
}

// fresh reads one entry of a list or map, over the defaults of its type.
func (d *decoder) fresh(n *node, t reflect.Type, path string, f field) reflect.Value {
	x := newEntry(t)
	if n.kind == null && t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		d.want(n, path, f, "a value")
		return x
	}
	d.value(n, x, path, f)
	return x
}

func (d *decoder) scalar(n *node, v reflect.Value, path string, f field) {
	if v.Type() == durationType {
		if n.kind == mapping || n.kind == sequence || n.kind == null || n.kind == boolean {
			d.want(n, path, f, "a duration such as 10s")
			return
		}
		t, err := parseDuration(n.text)
		if err != nil {
			d.bad(n.place, path, "%v", err)
			return
		}
		v.SetInt(int64(t))
		return
	}
	number := strings.ReplaceAll(n.text, "_", "")
	switch v.Kind() {
	case reflect.String:
		if n.kind == text || n.kind == integer || n.kind == float {
			v.SetString(n.text)
		} else if n.kind == boolean {
			d.want(n, path, f, `text; write it in quotes`)
		} else {
			d.want(n, path, f, "text")
		}
	case reflect.Bool:
		word := n.kind == boolean || n.loose && (len(n.text) > 1 || n.text == "0" || n.text == "1") // not "t"
		if b, err := strconv.ParseBool(n.text); err == nil && word {
			v.SetBool(b)
		} else {
			d.want(n, path, f, "true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(number, 0, 64)
		switch {
		case n.kind != integer && !n.loose, err != nil && !errors.Is(err, strconv.ErrRange):
			d.want(n, path, f, "a whole number")
		case err != nil || v.OverflowInt(i):
			d.bad(n.place, path, "the number is too large")
		default:
			v.SetInt(i)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		i, err := strconv.ParseUint(number, 0, 64)
		if n.kind != integer && !n.loose || err != nil || v.OverflowUint(i) {
			d.want(n, path, f, "a whole number, not negative")
		} else {
			v.SetUint(i)
		}
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(number, 64)
		if n.kind != integer && n.kind != float && !n.loose || err != nil || x-x != 0 {
			d.want(n, path, f, "a number")
		} else {
			v.SetFloat(x)
		}
	default:
		d.bad(n.place, path, "the program cannot read a %s here; this is a defect of Shallot", v.Type())
	}
}
