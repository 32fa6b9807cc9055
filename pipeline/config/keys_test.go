package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocsKeys writes the table of keys in docs/configuration.md from the structs, their tags and [Default].
func TestDocsKeys(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/configuration.md", "<!-- keys: generated -->\n", "<!-- keys: end -->"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok, "%s lacks the line %s", file, begin)
	_, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s lacks the line %s", file, end)
	var b strings.Builder
	b.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
	keyRows(&b, reflect.ValueOf(Default()), "")
	want := head + begin + b.String() + end + tail
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "run: go test ./pipeline/config -run Docs -update")
}

// keyRows writes a row for each key of a record, and for those of the records in it.
func keyRows(b *strings.Builder, v reflect.Value, path string) {
	for _, f := range fields(v.Type()) {
		if f.typ == interType {
			continue
		}
		x, at := v.FieldByIndex(f.index), dot(path, f.name)
		t := bare(f.typ)
		_, shortForm := shortForms[t]
		if t.Kind() != reflect.Struct || !isRecord(t) || shortForm {
			fallback, meaning := "", strings.ReplaceAll(f.meaning(), "<", `\<`)
			if f.required && x.IsZero() {
				fallback = "required"
			} else if d, ok := defaultOf(x, f); ok && d != nil {
				fallback = shown(d)
			}
			if f.fileOnly {
				meaning += " *File only.*"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", at, kindOf(f), fallback, meaning)
		}
		switch {
		case isRecord(t) && t.Kind() == reflect.Struct:
			if x.Kind() == reflect.Pointer {
				x = reflect.New(t).Elem()
			}
			keyRows(b, x, at)
		case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
			keyRows(b, newEntry(t.Elem()), at+"[]")
		}
	}
}

// kindOf says what a key takes.
func kindOf(f field) string {
	t := bare(f.typ)
	numeric := t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
	switch {
	case t == durationType, t == reflect.TypeFor[Duration]():
		return "duration"
	case t == sizeType:
		return "size"
	case t == reflect.TypeFor[Auto]():
		return "auto, true, false"
	case f.enum != nil && t.Kind() != reflect.Slice:
		return strings.TrimSuffix(strings.Join(f.enum, ", "), ", ")
	case numeric && f.min != "" && f.max != "":
		return "number " + f.min + " to " + f.max
	case numeric && f.min != "":
		return "number from " + f.min
	case numeric:
		return "number"
	case t.Kind() == reflect.Bool:
		return "true, false"
	case t == rawType, shortForms[t] != nil:
		return "any"
	case t.Kind() == reflect.Slice && f.enum != nil:
		return "list of " + strings.Join(f.enum, ", ")
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Map:
		return "map"
	}
	return "text"
}

// shown is a default as the file would hold it; what is empty is not shown.
func shown(d any) string {
	raw, err := json.Marshal(d)
	text := strings.Trim(string(raw), `"`)
	if err != nil || text == "" || text == "[]" || text == "{}" {
		return ""
	}
	text = strings.NewReplacer(`"`, "", ",", ", ", ":", ": ").Replace(text)
	if s, ok := d.(string); ok {
		text = s
	}
	if s, ok := d.(interface{ MarshalText() ([]byte, error) }); ok {
		raw, _ := s.MarshalText()
		text = string(raw)
	}
	return "`" + text + "`"
}
