package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// short is a value that may be written in a short form, to which the bounds of its keys do not apply.
type short interface{ short() bool }

func (r ToolRetry) short() bool { return r.Preset != "" }

// checker checks values against the bounds in the tags, and reports problems with their places.
type checker struct {
	*decoder
	refused map[string]bool // paths that already have a problem
}

// fail reports a problem of a key at its place, once.
func (c *checker) fail(path, format string, args ...any) {
	if !c.isRefused(path) {
		c.refused[path] = true
		c.bad(placeOf(c.at, path), path, format, args...)
	}
}

func (c *checker) isRefused(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if c.refused[p] {
			return true
		}
	}
	return false
}

// placeOf returns the place of a path, or of the nearest key above it that was written.
func placeOf(at map[string]*node, path string) place {
	for p := path; p != ""; p = parent(p) {
		if n := at[p]; n != nil {
			return n.place
		}
	}
	return place{}
}

// refusedBelow reports whether a key in the record already has a problem, which may be the cause of the record's.
func (c *checker) refusedBelow(path string) bool {
	for p := range c.refused {
		if len(p) > len(path) && strings.HasPrefix(p, path) && strings.ContainsRune(".[", rune(p[len(path)])) {
			return true
		}
	}
	return false
}

func parent(path string) string {
	i := strings.LastIndexAny(path, ".[")
	if i < 0 {
		return ""
	}
	return path[:i]
}

func (c *checker) value(v reflect.Value, path string, f field) {
	if f.required && (v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0) {
		if !c.meant[path] {
			c.fail(path, "missing. It says: %s", strings.TrimSuffix(f.meaning(), "."))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			c.value(v.Elem(), path, f)
		}
		return
	case reflect.Struct:
		if s, ok := v.Interface().(short); ok && s.short() || !isRecord(v.Type()) || v.Type() == interType {
			return
		}
		for _, k := range fields(v.Type()) {
			c.value(v.FieldByIndex(k.index), dot(path, k.name), k)
		}
		return
	case reflect.Slice:
		if v.Type() == rawType {
			return
		}
		f.required = false
		for i := range v.Len() {
			c.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
		return
	case reflect.Map:
		f.required = false
		if v.Type().Key().Kind() == reflect.String {
			keys := v.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				c.value(v.MapIndex(k), dot(path, k.String()), f)
			}
		}
		return
	}
	c.bounds(v, path, f)
}

func (c *checker) bounds(v reflect.Value, path string, f field) {
	shown := show(v)
	if f.secret || v.Type() == secretType || v.Type() == urlType {
		shown = "the value"
	}
	if f.enum != nil && !slices.Contains(f.enum, shown) {
		known := slices.DeleteFunc(slices.Clone(f.enum), func(e string) bool { return e == "" })
		hint := "."
		if s := suggest(shown, known); s != "" {
			hint = fmt.Sprintf("; did you mean %s?", s)
		}
		if path == "version" {
			c.fail(path, "%s is not known; this program reads version %s", shown, list(known))
			return
		}
		c.fail(path, "%q is not known%s Known: %s", shown, hint, list(known))
		return
	}
	if f.pattern != "" && v.Kind() == reflect.String && !pattern(f.pattern).MatchString(v.String()) {
		c.fail(path, "%q does not match %s", clip(shown), f.pattern)
		return
	}
	low, lok := bound(v, f.min)
	high, hok := bound(v, f.max)
	x, _ := bound(v, shown)
	switch {
	case lok && hok && !(x >= low && x <= high):
		c.fail(path, "%s is out of bounds; %s to %s", shown, f.min, f.max)
	case lok && !(x >= low):
		c.fail(path, "%s is too small; at least %s", shown, f.min)
	case hok && !(x <= high):
		c.fail(path, "%s is too large; at most %s", shown, f.max)
	}
}

// bound reads a bound in the unit of the value.
func bound(v reflect.Value, text string) (float64, bool) {
	if text == "" {
		return 0, false
	}
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		return float64(d), err == nil
	case v.Type() == sizeType:
		var s Size
		if strings.HasPrefix(text, "-") || s.UnmarshalText([]byte(text)) != nil {
			return -1, true
		}
		return float64(s), true
	case v.CanInt(), v.CanUint(), v.CanFloat():
		x, err := strconv.ParseFloat(text, 64)
		return x, err == nil
	}
	return 0, false
}

func show(v reflect.Value) string {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprint(v.Interface())
}

func clip(s string) string { return messages.Clip(s, 60) }

var patterns sync.Map // the patterns of the tags, a closed set

func pattern(p string) *regexp.Regexp {
	if r, ok := patterns.Load(p); ok {
		return r.(*regexp.Regexp)
	}
	r := regexp.MustCompile(p)
	patterns.Store(p, r)
	return r
}

// all checks the configuration and the sections against their tags, and asks the sections themselves.
func (c *checker) all(l *Loaded) {
	c.value(reflect.ValueOf(l.Config), "", field{})
	for _, name := range sortedKeys(c.sections) {
		at := "agent.interceptor." + name
		c.value(reflect.ValueOf(c.sections[name]).Elem(), at, field{})
		s, ok := c.sections[name].(interface{ Validate() error })
		if !ok {
			continue
		}
		for _, err := range single(s.Validate()) {
			if path, text := l.split(at, err.Error()); !c.isRefused(path) && !c.refusedBelow(path) {
				c.bad(placeOf(c.at, path), path, "%s", text)
			}
		}
	}
}
