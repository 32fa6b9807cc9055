package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const prefix = "SHALLOT_"

// variable is the environment variable of a path.
func variable(path []string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(strings.Join(path, "__"), "-", "_"))
}

// environment applies SHALLOT_ variables. One that looks like a path and is none is a problem; others, such as a key
// that the configuration names, are left alone.
func (d *decoder) environment() {
	byName, flat := map[string]setting{}, map[string]string{}
	all := make([]string, 0, len(d.known))
	for _, k := range d.known {
		name := variable(k.path)
		byName[name] = k
		if len(k.path) > 1 && !isRecord(bare(k.f.typ)) {
			flat[strings.ReplaceAll(name, "__", "_")] = name
		}
		all = append(all, name)
	}
	named := d.namedVariables()
	for _, name := range slices.Sorted(maps.Keys(d.env)) {
		if !strings.HasPrefix(name, prefix) || d.used[name] || named[name] {
			continue
		}
		n := &node{kind: text, text: d.env[name], loose: true, place: place{source: "environment variable " + name}}
		if k, ok := byName[name]; ok {
			d.override(n, k)
			continue
		}
		meant, near := flat[name]
		if !near && !strings.Contains(name, "__") {
			continue
		}
		if !near {
			meant = suggest(name, all)
		}
		hint := "; a path is written with __ between its parts and _ for -"
		if meant != "" {
			hint = fmt.Sprintf("; did you mean %s?", meant)
		}
		d.bad(n.place, "", "no such key of the configuration%s", hint)
	}
}

// namedVariables are those that the configuration itself names as holders of secrets.
func (d *decoder) namedVariables() map[string]bool {
	out := map[string]bool{}
	for path, n := range d.at {
		if strings.HasSuffix(path, "-env") && n.kind == text {
			out[n.text] = true
		}
	}
	return out
}

func (d *decoder) override(n *node, k setting) {
	path := strings.Join(k.path, ".")
	switch {
	case k.closed:
		d.bad(n.place, path, "only the file may hold this key")
		return
	case isRecord(bare(k.f.typ)) && !strings.HasPrefix(strings.TrimSpace(n.text), "{"):
		d.bad(n.place, path, "this is a section; set one of its keys, such as %s", d.below(k))
		return
	}
	d.value(n, k.v, path, k.f)
	for p := parent(path); p != "" && d.at[p] == nil; p = parent(p) {
		d.at[p] = n
	}
}

// below is the variable of some key in a section.
func (d *decoder) below(k setting) string {
	for _, o := range d.known {
		if len(o.path) == len(k.path)+1 && slices.Equal(o.path[:len(k.path)], k.path) {
			return variable(o.path)
		}
	}
	return variable(k.path) + "__..."
}

func (d *decoder) flags(flags map[string]string) {
	paths := make([]string, len(d.known))
	for i, k := range d.known {
		paths[i] = strings.Join(k.path, ".")
	}
	for _, path := range slices.Sorted(maps.Keys(flags)) {
		n := &node{kind: text, text: flags[path], loose: true, place: place{source: "flag for " + path}}
		if i := slices.Index(paths, path); i >= 0 {
			d.override(n, d.known[i])
			continue
		}
		hint := ""
		if s := suggest(path, paths); s != "" {
			hint = "; did you mean " + s + "?"
		}
		d.bad(n.place, "", "no such key of the configuration%s", hint)
	}
}

// natsEnvironment takes the variables that NATS users know, where nothing of ours says which server is meant.
func (d *decoder) natsEnvironment(cfg *Config) {
	set := func(name, path string, into *string) {
		if v := d.env[name]; v != "" && d.at[path] == nil {
			*into = v
			d.at[path] = &node{kind: text, text: v, loose: true, place: place{source: "environment variable " + name}}
		}
	}
	if d.at["nats.url"] == nil && d.at["nats.context"] == nil {
		var u string
		if set("NATS_URL", "nats.url", &u); u != "" {
			cfg.NATS.URL = URL(u)
		} else {
			set("NATS_CONTEXT", "nats.context", &cfg.NATS.Context)
		}
	}
	if !cfg.Embedded() {
		set("NATS_CREDS", "nats.creds", &cfg.NATS.Creds)
	}
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
