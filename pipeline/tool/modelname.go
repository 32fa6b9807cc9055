package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxModelName is the longest name that the model APIs take.
const maxModelName = 64

var (
	modelName    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	notInModel   = regexp.MustCompile(`[^A-Za-z0-9_-]`)
	aliasOfModel = regexp.MustCompile(`^(?:[A-Za-z0-9_-]{1,55})?_[0-9a-f]{8}$`)
)

// ModelName is the name under which a model is offered a tool. Model APIs take 1 to 64 characters of A-Z a-z 0-9 _ -. A
// name of that form stays as it is. Any other, with a dot or too long, gets underscores and ends in eight characters of
// its hash, so that a.b and a_b remain different. The result depends on the name alone; tools that come and go do not
// change it.
func ModelName(name string) string {
	if modelName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "_" + hex.EncodeToString(sum[:4])
	clean := notInModel.ReplaceAllString(name, "_")
	return clean[:min(len(clean), maxModelName-len(end))] + end
}

// MayBeModelName reports whether a name looks like one that ModelName made of another.
func MayBeModelName(name string) bool {
	base, _, _ := strings.Cut(name, "@")
	return aliasOfModel.MatchString(base)
}

// OfModelName finds the tool among names that ModelName turned into alias, and returns its name with the version of
// alias. ok is false if there is none, and if a tool has that name itself.
func OfModelName(alias string, names []string) (name string, ok bool) {
	base, version, pinned := strings.Cut(alias, "@")
	for _, n := range names {
		switch {
		case n == base:
			return "", false
		case ModelName(n) == base:
			name, ok = n, true
		}
	}
	if ok && pinned {
		name += "@" + version
	}
	return name, ok
}
