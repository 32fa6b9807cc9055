package tool

import (
	"cmp"
	"strconv"
	"strings"
)

// Pin is the name with the version that a call was resolved to, which replaces a version that the name has.
func Pin(name, version string) string {
	base, _, _ := strings.Cut(name, "@")
	if version == "" {
		return name
	}
	return base + "@" + version
}

// versions orders versions; the last one is the one to run. It follows semantic versions as far as they go: part by
// part, numbers as numbers (1.10 is newer than 1.9), a release newer than its pre-releases (1.0 than 1.0-rc.10, which
// is newer than 1.0-rc.9); a leading v and what follows a + do not count. Any release is preferred to any pre-release
// (1.9 to 2.0-rc1), because a trial must not take over the calls that pin no version. The order is total: two versions
// that are spelled differently are never equal, so all processes choose the same.
func versions(a, b string) int {
	coreA, preA, hasA := parts(a)
	coreB, preB, hasB := parts(b)
	if trialA, trialB := hasA && partKind(preA[0]) == 2, hasB && partKind(preB[0]) == 2; trialA != trialB {
		if trialA {
			return -1
		}
		return 1
	}
	if c := inTurn(coreA, coreB, "0"); c != 0 {
		return c
	}
	switch {
	case hasA && !hasB:
		return -1
	case hasB && !hasA:
		return 1
	}
	return cmp.Or(inTurn(preA, preB, ""), strings.Compare(a, b))
}

func parts(v string) (core, pre []string, hasPre bool) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	v, rest, hasPre := strings.Cut(v, "-")
	return strings.Split(v, "."), strings.Split(rest, "."), hasPre
}

// inTurn compares lists of parts; missing stands for a part that a list does not have.
func inTurn(a, b []string, missing string) int {
	for i := range max(len(a), len(b)) {
		x, y := missing, missing
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if c := part(x, y); c != 0 {
			return c
		}
	}
	return 0
}

// part compares one part: nothing before numbers, numbers before words. What follows a number ("2a") and the number at
// the end of a word ("rc9", "rc10") count too.
func part(a, b string) int {
	if c := cmp.Compare(partKind(a), partKind(b)); c != 0 {
		return c
	}
	leadA, restA := lead(a)
	leadB, restB := lead(b)
	wordA, numA := tail(restA)
	wordB, numB := tail(restB)
	return cmp.Or(cmp.Compare(leadA, leadB), strings.Compare(wordA, wordB), cmp.Compare(numA, numB))
}

func partKind(part string) int {
	switch {
	case part == "":
		return 0
	case part[0] >= '0' && part[0] <= '9':
		return 1
	}
	return 2
}

// lead splits off the number at the beginning. A number beyond 64 bits belongs to the rest.
func lead(part string) (n uint64, rest string) {
	rest = strings.TrimLeft(part, "0123456789")
	n, err := strconv.ParseUint(part[:len(part)-len(rest)], 10, 64)
	if err != nil {
		return 0, part
	}
	return n, rest
}

// tail splits off the number at the end.
func tail(part string) (word string, n uint64) {
	word = strings.TrimRight(part, "0123456789")
	n, err := strconv.ParseUint(part[len(word):], 10, 64)
	if err != nil {
		return part, 0
	}
	return word, n
}
