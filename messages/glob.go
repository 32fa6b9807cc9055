package messages

import (
	"fmt"
	"slices"
	"strings"
)

// ExactGlob is the score of a pattern that is the name itself: above that of every pattern with a star.
const ExactGlob = 1 << 30

// Glob reports whether a name fits a pattern. It is the only pattern language for names of models and tools: `*`
// matches any text, including the empty text and slashes; every other character matches itself, and case matters.
func Glob(pattern, name string) bool { return GlobScore(pattern, name) >= 0 }

// AnyGlob reports whether a name fits one of the patterns; no patterns let every name through.
func AnyGlob(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return Glob(p, name) })
}

// GlobScore says how closely a pattern fits a name, for those who look for the best of several: -1 if it does not,
// [ExactGlob] for a pattern without a star, else the number of bytes that are not stars. So "*" has 0.
func GlobScore(pattern, name string) int {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		if pattern == name {
			return ExactGlob
		}
		return -1
	}
	name, fits := strings.CutPrefix(name, head)
	for fits {
		piece, after, more := strings.Cut(rest, "*")
		if !more {
			if !strings.HasSuffix(name, piece) {
				return -1
			}
			return len(pattern) - strings.Count(pattern, "*")
		}
		_, name, fits = strings.Cut(name, piece)
		rest = after
	}
	return -1
}

// CheckGlob refuses a pattern that is empty or uses the syntax of other globs. Such syntax would be taken literally
// here, so a limit or a policy would silently match nothing.
func CheckGlob(pattern string) error {
	if pattern == "" {
		return fmt.Errorf("a name or pattern must not be empty; * stands for any text")
	}
	if i := strings.IndexAny(pattern, `?[]{}\`); i >= 0 {
		return fmt.Errorf("%q is not a name or pattern: %q is not known; only * stands for other text",
			pattern, pattern[i])
	}
	return nil
}
