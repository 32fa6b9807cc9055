package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Options says what [Load] reads.
type Options struct {
	// File is the path of the YAML file; empty: the defaults only.
	File string
	// Environ is the environment as os.Environ gives it. Later entries win.
	Environ []string
	// Flags are keys given on the command line, by path ("nats.url"), as text. They win over the environment, which
	// wins over the file. Lists are written by comma.
	Flags map[string]string
	// Sections are the stages' configurations: the name of the section to a non-nil pointer to a struct that holds the
	// defaults. Load decodes agent.interceptor.<name> into it.
	// A section with a method Validate() error is asked too; each error that it joins begins with a key.
	Sections map[string]any
	// Stages are the names of the built-in stages by kind; a remote stage cannot have one of them.
	Stages map[string][]string
}

// Loaded is a configuration that passed validation. It is read-only and safe for concurrent use.
type Loaded struct {
	Config
	// Sections are those of the options, filled.
	Sections map[string]any
	src      *source
	at       map[string]*node
	known    map[string]field
}

// Explicit reports whether the operator wrote the key, even with its default value: in the file, in the environment,
// or as a flag. A key is written too if something below it is.
func (l *Loaded) Explicit(path string) bool { return l.at[path] != nil }

// Where says where a key was written: "file:line:column", a variable, a flag, or "default".
func (l *Loaded) Where(path string) string {
	for p := path; p != ""; p = parent(p) {
		switch n := l.at[p]; {
		case n == nil:
		case n.source != "":
			return n.source
		default:
			return fmt.Sprintf("%s:%d:%d", l.src.name, n.line, n.column)
		}
	}
	return "default"
}

// Load reads defaults, file, environment and flags, each over the one before, and validates the result. The error, if
// any, joins every [Problem] found and is an [ErrConfig]. The sections may be partly filled when it fails.
func Load(o Options) (*Loaded, error) {
	for name, s := range o.Sections {
		if v := reflect.ValueOf(s); v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return nil, fmt.Errorf("%w: section %s is a %T, want a pointer to a struct", ErrConfig, name, s)
		}
	}
	src := newSource(o.File, o.Environ)
	l := &Loaded{Config: Default(), Sections: o.Sections, src: src, at: map[string]*node{}, known: map[string]field{}}
	d := &decoder{source: src, sections: o.Sections, stages: o.Stages, at: l.at, meant: map[string]bool{}}
	d.known = d.settings(reflect.ValueOf(&l.Config).Elem(), nil, false)
	if o.File != "" {
		if root := src.read(o.File); root != nil {
			d.value(root, reflect.ValueOf(&l.Config).Elem(), "", field{})
		}
	}
	d.known = d.settings(reflect.ValueOf(&l.Config).Elem(), nil, false) // again: the file may have made new records
	d.environment()
	d.flags(o.Flags)
	d.natsEnvironment(&l.Config)
	for _, k := range d.known {
		l.known[strings.Join(k.path, ".")] = k.f
	}
	c := &checker{decoder: d, refused: map[string]bool{}}
	for _, p := range d.found {
		c.refused[p.Path] = true
	}
	c.all(l)
	c.rules(&l.Config)
	if len(d.found) == 0 {
		return l, nil
	}
	return nil, src.report(d.found)
}

func newSource(file string, environ []string) *source {
	s := &source{name: file, env: map[string]string{}, used: map[string]bool{}, anchors: map[string]*node{}}
	for _, e := range environ {
		if k, v, ok := strings.Cut(e, "="); ok {
			s.env[k] = v
		}
	}
	return s
}

// setting is one key: its path, where its value is kept, and its tags.
type setting struct {
	path []string
	v    reflect.Value
	f    field
	// closed says that only the file may hold it.
	closed bool
}

// settings lists the keys of a struct and of the records in it, but not of those in lists.
func (d *decoder) settings(v reflect.Value, path []string, closed bool) []setting {
	var out []setting
	for _, f := range fields(v.Type()) {
		p := append(slices.Clone(path), f.name)
		x := v.FieldByIndex(f.index)
		out = append(out, setting{path: p, v: x, f: f, closed: closed || f.fileOnly})
		switch {
		case f.typ == interType:
			for _, name := range sortedKeys(d.sections) {
				s := reflect.ValueOf(d.sections[name]).Elem()
				q := append(slices.Clone(p), name)
				out = append(out, setting{path: q, v: s, f: field{name: name, typ: s.Type()}})
				out = append(out, d.settings(s, q, false)...)
			}
		case x.Kind() == reflect.Struct && isRecord(f.typ):
			out = append(out, d.settings(x, p, closed || f.fileOnly)...)
		case x.Kind() == reflect.Pointer && f.typ.Elem().Kind() == reflect.Struct && isRecord(f.typ.Elem()) && !x.IsNil():
			out = append(out, d.settings(x.Elem(), p, closed || f.fileOnly)...)
		}
	}
	return out
}
