package config

import "strings"

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
		if d := distance(flat, flatten(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	if best == "" {
		best = abbreviation(flat, known)
	}
	return best
}

// abbreviation returns the known name that begins as the given one does, or the other way round, but for one letter:
// addr for adress.
func abbreviation(flat string, known []string) string {
	const least = 3
	for _, k := range known {
		short, long := flatten(k), flat
		if len(short) > len(long) {
			short, long = long, short
		}
		for n := len(short) - 1; len(short) >= least && n <= min(len(short)+1, len(long)); n++ {
			if long[0] == short[0] && distance(short, long[:n]) <= 1 {
				return k
			}
		}
	}
	return ""
}

// flatten takes case, - and _ out of a name.
func flatten(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
}

// distance is the number of characters to insert, delete, replace or swap with the neighbour. Long texts are cut.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	x, y = x[:min(len(x), 64)], y[:min(len(y), 64)]
	two, one := make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row := make([]int, len(y)+1)
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, one[j]+1, one[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one = one, row
	}
	return one[len(y)]
}

// list joins names for a message; many are cut.
func list(known []string) string {
	if len(known) > 40 {
		return strings.Join(known[:40], ", ") + ", ..."
	}
	return strings.Join(known, ", ")
}
