package messages

import (
	"fmt"
	"strings"
)

// ExactGlob is the score of a pattern that is the name itself: above that of every pattern with a star.
const ExactGlob = 1 << 30

// Glob reports whether a name fits a pattern. It is the only pattern language for names of models and tools: `*` stands
// for any text, also for none and for a slash; every other character stands for itself, case included.
func Glob(pattern, name string) bool { return GlobScore(pattern, name) >= 0 }

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

// CheckGlob refuses a pattern that is empty or has a sign of other globs. Such a sign would stand for itself here, so
// that a limit or a policy would silently fit nothing.
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
