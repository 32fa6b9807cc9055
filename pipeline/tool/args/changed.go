package args

import (
	"fmt"
	"slices"
	"strings"
)

// maxChanged bounds the changes that are told one by one; the others are counted.
const maxChanged = 20

// Changed says in words what parsing did to the arguments, one entry for each change: the name and the kinds of the
// values ("amount: string -> number"). With values set it says the values themselves, which may be secrets and are for
// operators only. A default for a name that was not sent is not a change.
func Changed(changes []Change, values bool) []string {
	changes = slices.DeleteFunc(slices.Clone(changes), func(c Change) bool {
		return c.Rule == RuleDefault && c.From == ""
	})
	var out []string
	for i, c := range changes {
		if i == maxChanged && len(changes) > maxChanged+1 {
			return append(out, fmt.Sprintf("and %d more", len(changes)-i))
		}
		out = append(out, c.words(values))
	}
	return out
}

func (c Change) words(values bool) string {
	name := strings.TrimPrefix(c.Path, "/")
	if name == "" {
		name = "the arguments"
	}
	say := kindOf
	if values {
		say = func(s string) string { return s }
	}
	switch {
	case c.Rule == RuleRenamed:
		return name + ": was named " + c.From
	case c.From != "" && c.To != "":
		return name + ": " + say(c.From) + " -> " + say(c.To)
	case c.From != "":
		return name + ": " + say(c.From) + ", " + c.Rule
	case c.To != "":
		return name + ": " + c.Rule + " " + say(c.To)
	}
	return name + ": " + c.Rule
}

// kindOf is the kind of a JSON text, by its first character.
func kindOf(text string) string {
	switch text[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}
