package config

import (
	"errors"
	"reflect"
	"regexp"
	"slices"
)

// Place gives errors whose text begins with the path of a key the place of that key: "stages[2].order: 7 is taken"
// becomes a [Problem] with file, line, column and excerpt. Joined errors are placed one by one, and duplicates are
// dropped. Errors that do not begin with a key stay as they are. It is for packages that check more than the loader
// can.
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
		p := &Problem{File: l.src.name, Line: at.line, Column: at.column, Source: at.source, Path: path, Text: text,
			cause: e}
		if !slices.ContainsFunc(placed, func(o *Problem) bool { return o.Path == p.Path && o.Text == p.Text }) {
			placed = append(placed, p)
		}
	}
	return errors.Join(append([]error{l.src.report(placed)}, rest...)...)
}

// single splits joined errors into their parts. An error whose text has more than its parts stays whole.
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
// brackets may follow, as in "policies[0] (careful): when: ..."; it is dropped, because the place says the same.
var keyText = regexp.MustCompile(`^([A-Za-z][\w-]*(?:\[\d+\])?(?:\.[\w-]+(?:\[\d+\])?)*)(?: \(.*?\))?: `)

// split splits a text into the key, below the given path, and the rest. It takes as much of the key as is known.
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

// knows reports whether the key exists, or a key above it holds a list or a map.
func (l *Loaded) knows(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if f, ok := l.known[p]; ok {
			k := bare(f.typ).Kind()
			return p == path || k == reflect.Map || k == reflect.Slice
		}
	}
	return false
}
