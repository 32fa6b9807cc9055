package config

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// field holds the tags of one struct field.
type field struct {
	name     string
	index    []int
	typ      reflect.Type
	owner    reflect.Type // the struct, and goName the field's name there
	goName   string
	doc      string // of the tag; see [field.meaning]
	enum     []string
	min, max string
	pattern  string
	required bool
	secret   bool
	fileOnly bool
}

// fields lists the keys of a struct, including those of inlined structs.
func fields(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		sf := t.Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if strings.Contains(options, "inline") || sf.Anonymous && name == "" && sf.Type.Kind() == reflect.Struct {
			for _, f := range fields(sf.Type) {
				f.index = append([]int{i}, f.index...)
				out = append(out, f)
			}
			continue
		}
		if !sf.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = strings.ToLower(sf.Name)
		}
		f := field{
			name: name, index: []int{i}, typ: sf.Type, owner: t, goName: sf.Name, doc: sf.Tag.Get("doc"),
			min: sf.Tag.Get("min"), max: sf.Tag.Get("max"), pattern: sf.Tag.Get("pattern"),
			required: sf.Tag.Get("required") == "true", secret: sf.Tag.Get("secret") == "true",
			fileOnly: sf.Tag.Get("env") == "-",
		}
		if e, ok := sf.Tag.Lookup("enum"); ok {
			f.enum = strings.Split(e, ",")
		}
		out = append(out, f)
	}
	return out
}

func names(fs []field) []string {
	out := make([]string, len(fs))
	for i, f := range fs {
		out[i] = f.name
	}
	return out
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	secretType   = reflect.TypeFor[Secret]()
	urlType      = reflect.TypeFor[URL]()
	sizeType     = reflect.TypeFor[Size]()
	interType    = reflect.TypeFor[Interceptors]()
	yamlFunc     = reflect.TypeFor[yamlFuncUnmarshaler]()
	textRead     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

type yamlFuncUnmarshaler interface{ UnmarshalYAML(func(any) error) error }

// isRecord reports whether a type has keys of its own, so that paths lead into it.
func isRecord(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textRead) && t != reflect.TypeFor[time.Time]()
}

// bare returns the type behind pointers.
func bare(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
