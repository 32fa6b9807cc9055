package config

import (
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// suggest returns the known name that was probably meant, or "".
func suggest(got string, known []string) string {
	flat := flatten(got)
	for _, k := range known {
		if flatten(k) == flat {
			return k
		}
	}
	best, least := "", max(2, len(got)/3)+1
	for _, k := range known {
		if d := messages.Distance(flat, flatten(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	if best == "" {
		best = abbreviation(flat, known)
	}
	return best
}

// abbreviation returns the known name that begins like the given one, or the other way round, allowing one wrong
// letter: addr for adress.
func abbreviation(flat string, known []string) string {
	const least = 3
	for _, k := range known {
		short, long := flatten(k), flat
		if len(short) > len(long) {
			short, long = long, short
		}
		for n := len(short) - 1; len(short) >= least && n <= min(len(short)+1, len(long)); n++ {
			if long[0] == short[0] && messages.Distance(short, long[:n]) <= 1 {
				return k
			}
		}
	}
	return ""
}

// flatten removes case, - and _ from a name.
func flatten(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
}

// list joins names for a message and cuts long lists.
func list(known []string) string {
	if len(known) > 40 {
		return strings.Join(known[:40], ", ") + ", ..."
	}
	return strings.Join(known, ", ")
}
