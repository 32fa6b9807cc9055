package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// SchemaID is the identifier of the generated JSON Schema.
const SchemaID = "https://github.com/shallot-nats/shallot/raw/main/docs/config.schema.json"

// object is a JSON object that keeps the order of its keys, so that the schema reads like the structs.
type object []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the keys in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		quote(&b, p.key)
		b.WriteByte(':')
		if err := encode(&b, p.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode writes JSON with < and > as they are.
func encode(b *bytes.Buffer, v any) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	b.Truncate(max(0, len(bytes.TrimRight(b.Bytes(), "\n"))))
	return err
}

// Schema is the JSON Schema (2020-12) of the configuration with the given sections, made of the structs' tags; the
// values in the structs are the defaults that it names. It is what editors complete and check with; the loader knows
// rules beyond it, and accepts ${VAR} where the schema wants a number.
func Schema(sections map[string]any) []byte {
	cfg := Default()
	o := object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", SchemaID},
		{"title", "Shallot configuration"},
	}
	o = append(o, recordSchema(reflect.ValueOf(cfg), sections)...)
	var compact, b bytes.Buffer
	if err := encode(&compact, o); err != nil {
		return []byte("{}") // defaults of a section that JSON cannot hold, such as NaN
	}
	_ = json.Indent(&b, compact.Bytes(), "", "  ") // valid: encode made it
	b.WriteByte('\n')
	return b.Bytes()
}

func recordSchema(v reflect.Value, sections map[string]any) object {
	props, required := object{}, []string{}
	for _, f := range fields(v.Type()) {
		if f.typ == interType {
			stages := object{}
			for _, name := range sortedKeys(sections) {
				stages = append(stages, pair{name, recordSchema(reflect.ValueOf(sections[name]).Elem(), nil)})
			}
			props = append(props, pair{f.name, object{{"description", f.doc}, {"type", "object"}, {"properties", stages}, {"additionalProperties", false}}})
			continue
		}
		x := v.FieldByIndex(f.index)
		s := valueSchema(x, f, sections)
		if d, ok := defaultOf(x, f); ok {
			s = append(s, pair{"default", d})
		}
		if f.doc != "" {
			s = append(object{{"description", f.doc}}, s...)
		}
		props = append(props, pair{f.name, s})
		if f.required && x.IsZero() {
			required = append(required, f.name)
		}
	}
	o := object{{"type", "object"}, {"properties", props}, {"additionalProperties", false}}
	if len(required) > 0 {
		o = append(o, pair{"required", required})
	}
	return o
}

// newEntry is an entry of a list or map with the defaults of its type.
func newEntry(t reflect.Type) reflect.Value {
	x := reflect.New(t)
	if s, ok := x.Interface().(interface{ SetDefaults() }); ok {
		s.SetDefaults()
	}
	return x.Elem()
}

const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$|\$\{`

var shortForms = map[reflect.Type]object{
	reflect.TypeFor[ToolExecutor](): {{"type", "string"}},
	reflect.TypeFor[ToolRetry]():    {{"enum", []string{"networkRetry", "idempotentSafeRetry", "noRetry"}}},
	reflect.TypeFor[ToolCache]():    {{"type", []string{"string", "boolean"}}},
}

func valueSchema(v reflect.Value, f field, sections map[string]any) object {
	t := v.Type()
	switch t {
	case durationType, reflect.TypeFor[Duration]():
		return object{{"type", []string{"string", "integer"}}, {"pattern", durationPattern}}
	case sizeType:
		return object{{"type", []string{"string", "integer"}}, {"pattern", `^[0-9]+(\.[0-9]+)?\s*([KMGT]i?B|[kMGT]B|B)?$|\$\{`}}
	case reflect.TypeFor[Auto]():
		return object{{"enum", []any{"auto", true, false}}}
	case rawType:
		return object{}
	}
	if t.Kind() == reflect.Pointer {
		o := valueSchema(reflect.New(t.Elem()).Elem(), f, nil)
		if i := slices.IndexFunc(o, func(p pair) bool { return p.key == "type" }); i >= 0 {
			if s, ok := o[i].value.(string); ok {
				o[i].value = []string{s, "null"}
			}
		}
		return o
	}
	if short, ok := shortForms[t]; ok {
		return object{{"anyOf", []object{short, recordSchema(v, nil)}}}
	}
	p := reflect.PointerTo(t)
	if p.Implements(yamlFunc) || p.Implements(yamlBytes) {
		return object{} // it reads several shapes
	}
	if p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return object{{"type", []string{"string", "number"}}}
	}
	switch t.Kind() {
	case reflect.Struct:
		return recordSchema(v, sections)
	case reflect.Slice:
		inner := f
		inner.required = false
		return object{{"type", []string{"array", "null"}}, {"items", valueSchema(newEntry(t.Elem()), inner, nil)}}
	case reflect.Map:
		inner := f
		inner.required = false
		return object{{"type", []string{"object", "null"}}, {"additionalProperties", valueSchema(newEntry(t.Elem()), inner, nil)}}
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.String:
		o := object{{"type", "string"}}
		if f.enum != nil {
			o = append(o, pair{"enum", f.enum})
		}
		if f.pattern != "" {
			o = append(o, pair{"pattern", f.pattern})
		}
		return o
	case reflect.Interface:
		return object{}
	}
	o := object{{"type", "integer"}}
	if v.CanFloat() {
		o = object{{"type", "number"}}
	}
	if f.enum != nil {
		var of []json.Number
		for _, e := range f.enum {
			of = append(of, json.Number(e))
		}
		o = append(o, pair{"enum", of})
	}
	for _, b := range []struct{ key, text string }{{"minimum", f.min}, {"maximum", f.max}} {
		if _, err := strconv.ParseFloat(b.text, 64); err == nil {
			o = append(o, pair{b.key, json.Number(b.text)})
		}
	}
	return o
}

// defaultOf is the default as the file would hold it; records say theirs key by key.
func defaultOf(v reflect.Value, f field) (any, bool) {
	switch {
	case f.required && v.IsZero(), f.secret, v.Type() == rawType:
		return nil, false
	case v.Type() == durationType:
		return shortDuration(v), true
	case v.Kind() == reflect.Pointer, v.Kind() == reflect.Interface:
		if v.IsNil() {
			return nil, v.Kind() == reflect.Pointer
		}
		return defaultOf(v.Elem(), f)
	case v.Kind() == reflect.Map:
		m := map[string]any{}
		for it := v.MapRange(); it.Next(); {
			m[it.Key().String()], _ = defaultOf(it.Value(), f)
		}
		return m, true
	case v.Kind() == reflect.Slice:
		l := make([]any, v.Len())
		for i := range l {
			l[i], _ = defaultOf(v.Index(i), f)
		}
		return l, true
	case v.Kind() == reflect.Struct && isRecord(v.Type()):
		return nil, false
	case v.Type() == reflect.TypeFor[Duration]() && v.IsZero():
		return nil, false
	}
	if v.Kind() == reflect.String && v.Len() == 0 {
		return nil, false
	}
	if least, ok := bound(v, f.min); ok && v.IsZero() && least > 0 {
		return nil, false // the zero value stands for "not given"
	}
	return v.Interface(), true
}

// shortDuration writes 5m and not 5m0s.
func shortDuration(v reflect.Value) string {
	s := show(v)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
