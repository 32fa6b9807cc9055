package config

import (
	"errors"
	"reflect"
	"regexp"
	"slices"
)

// Place gives errors whose text begins with the path of a key the place of that key: "stages[2].order: 7 is taken"
// becomes a [Problem] with file, line, column and excerpt. Joined errors are placed one by one, and what is said twice
// is said once. Errors about no key stay as they are. It is for those who check more than the loader knows.
func (l *Loaded) Place(err error) error {
	var placed []*Problem
	var rest []error
	for _, e := range single(err) {
		path, text := l.split("", e.Error())
		if path == "" {
			if !slices.ContainsFunc(rest, func(o error) bool { return o.Error() == e.Error() }) {
				rest = append(rest, e)
			}
			continue
		}
		at := placeOf(l.at, path)
		p := &Problem{File: l.src.name, Line: at.line, Column: at.column, Source: at.source, Path: path, Text: text, cause: e}
		if !slices.ContainsFunc(placed, func(o *Problem) bool { return o.Path == p.Path && o.Text == p.Text }) {
			placed = append(placed, p)
		}
	}
	return errors.Join(append([]error{l.src.report(placed)}, rest...)...)
}

// single takes joined errors apart. Those that say more than their parts stay whole.
func single(err error) []error {
	j, ok := err.(interface{ Unwrap() []error })
	if err == nil || !ok {
		return slices.DeleteFunc([]error{err}, func(e error) bool { return e == nil })
	}
	parts := j.Unwrap()
	if len(parts) == 0 || errors.Join(parts...).Error() != err.Error() {
		return []error{err}
	}
	var out []error
	for _, e := range parts {
		out = append(out, single(e)...)
	}
	return out
}

// keyText is the beginning of an error text that may be a path: a key, or several with dots and indices. A name in
// brackets may follow, as in "policies[0] (careful): when: ..."; the place says as much.
var keyText = regexp.MustCompile(`^([A-Za-z][\w-]*(?:\[\d+\])?(?:\.[\w-]+(?:\[\d+\])?)*)(?: \(.*?\))?: `)

// split takes the key off a text, below the given path: as much of it as keys of that name are known.
func (l *Loaded) split(path, text string) (string, string) {
	for {
		m := keyText.FindStringSubmatch(text)
		section := m != nil && path == "" && parent(m[1]) == "" // "nats: timeout" is not about the key nats
		if m == nil || section || !l.knows(dot(path, m[1])) {
			return path, text
		}
		path, text = dot(path, m[1]), text[len(m[0]):]
	}
}

// knows reports whether there is such a key, or one above it that holds a list or a map.
func (l *Loaded) knows(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if f, ok := l.known[p]; ok {
			k := bare(f.typ).Kind()
			return p == path || k == reflect.Map || k == reflect.Slice
		}
	}
	return false
}
