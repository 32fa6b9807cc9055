package messages

import "strings"

// AnyGlob reports whether one of the patterns matches the name; no patterns let every name through.
func AnyGlob(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, p := range patterns {
		if Globs(p, name) {
			return true
		}
	}
	return false
}

// Globs matches a pattern in which * stands for any run of characters, slashes too.
func Globs(pattern, name string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
}
