package config

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// SchemaID is the identifier of the generated JSON Schema.
const SchemaID = "https://github.com/shallot-nats/shallot/raw/main/docs/config.schema.json"

// Schema returns the JSON Schema (2020-12) of the configuration with the given sections. It is made from the tags of
// the structs; the values in the structs are its defaults. Editors use it to complete and check; the loader has more
// rules, and accepts ${VAR} where the schema demands a number.
func Schema(sections map[string]any) []byte {
	s := recordSchema(reflect.ValueOf(Default()), sections)
	s.Schema, s.ID, s.Title = "https://json-schema.org/draft/2020-12/schema", SchemaID, "Shallot configuration"
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return []byte("{}") // a section has defaults that JSON cannot hold, such as NaN
	}
	return []byte(readable.Replace(string(raw)) + "\n")
}

// readable writes < > & unescaped: people read the schema, and it is not part of an HTML page.
var readable = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// closed makes the schema of a record that allows only its own keys.
func closed() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}, // written as false
	}
}

func recordSchema(v reflect.Value, sections map[string]any) *jsonschema.Schema {
	o := closed()
	for _, f := range fields(v.Type()) {
		x := v.FieldByIndex(f.index)
		s := valueSchema(x, f, sections)
		s.Description = f.meaning()
		if d, ok := defaultOf(x, f); ok {
			s.Default, _ = json.Marshal(d)
		}
		o.Properties[f.name] = s
		o.PropertyOrder = append(o.PropertyOrder, f.name)
		if f.required && x.IsZero() {
			o.Required = append(o.Required, f.name)
		}
	}
	return o
}

// newEntry makes an entry of a list or map with the defaults of its type.
func newEntry(t reflect.Type) reflect.Value {
	x := reflect.New(t)
	if s, ok := x.Interface().(interface{ SetDefaults() }); ok {
		s.SetDefaults()
	}
	return x.Elem()
}

const (
	durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$|\$\{`
	sizePattern     = `^[0-9]+(\.[0-9]+)?\s*([KMGT]i?B|[kMGT]B|B)?$|\$\{`
)

// shortForms are the short forms in which some records may be written.
var shortForms = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[ToolExecutor](): {Type: "string"},
	reflect.TypeFor[ToolRetry]():    {Enum: []any{"networkRetry", "idempotentSafeRetry", "noRetry"}},
	reflect.TypeFor[ToolCache]():    {Types: []string{"string", "boolean"}},
}

func valueSchema(v reflect.Value, f field, sections map[string]any) *jsonschema.Schema {
	t := v.Type()
	switch t {
	case interType:
		o := closed()
		for _, name := range sortedKeys(sections) {
			o.Properties[name] = recordSchema(reflect.ValueOf(sections[name]).Elem(), nil)
		}
		o.PropertyOrder = sortedKeys(sections)
		return o
	case durationType, reflect.TypeFor[Duration]():
		return &jsonschema.Schema{Types: []string{"string", "integer"}, Pattern: durationPattern}
	case sizeType:
		return &jsonschema.Schema{Types: []string{"string", "integer"}, Pattern: sizePattern}
	case reflect.TypeFor[Auto]():
		return &jsonschema.Schema{Enum: []any{"auto", true, false}}
	case rawType:
		return &jsonschema.Schema{}
	}
	if t.Kind() == reflect.Pointer {
		o := valueSchema(reflect.New(t.Elem()).Elem(), f, nil)
		if o.Type != "" {
			o.Types, o.Type = []string{o.Type, "null"}, ""
		}
		return o
	}
	if short, ok := shortForms[t]; ok {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{short.CloneSchemas(), recordSchema(v, nil)}}
	}
	p := reflect.PointerTo(t)
	switch {
	case p.Implements(yamlFunc):
		return &jsonschema.Schema{} // it reads values of several types
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return &jsonschema.Schema{Types: []string{"string", "number"}}
	}
	inner := f
	inner.required = false
	switch t.Kind() {
	case reflect.Struct:
		return recordSchema(v, sections)
	case reflect.Slice:
		return &jsonschema.Schema{Types: []string{"array", "null"}, Items: valueSchema(newEntry(t.Elem()), inner, nil)}
	case reflect.Map:
		values := valueSchema(newEntry(t.Elem()), inner, nil)
		return &jsonschema.Schema{Types: []string{"object", "null"}, AdditionalProperties: values}
	case reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case reflect.String:
		return &jsonschema.Schema{Type: "string", Enum: enumOf(f, func(s string) any { return s }), Pattern: f.pattern}
	}
	o := &jsonschema.Schema{Type: "integer", Enum: enumOf(f, func(s string) any { return json.Number(s) })}
	if v.CanFloat() {
		o.Type = "number"
	}
	o.Minimum, o.Maximum = limit(f.min), limit(f.max)
	return o
}

func enumOf(f field, as func(string) any) []any {
	var out []any
	for _, e := range f.enum {
		out = append(out, as(e))
	}
	return out
}

func limit(text string) *float64 {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return &x
	}
	return nil
}

// defaultOf returns the default as the file would have it; records give theirs key by key.
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
		return nil, false // the zero value means "not given"
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
