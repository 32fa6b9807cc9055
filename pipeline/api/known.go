package api

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// ourPrefix begins every header of our own, however its letters are cased.
const ourPrefix = "shallot-"

// callerHeaders are those of our headers that callers may send, with any request: one that a request has no use for is
// read by nobody and does no harm.
var callerHeaders = []string{
	"Shallot-Session", "Shallot-Run", "Shallot-User", "Shallot-Agent", "Shallot-Tenant", "Shallot-Timeout",
	"Shallot-Deadline", "Shallot-Only", "Shallot-Cache", "Shallot-Explain", HeaderStream,
}

// executorHeaders are what Shallot tells the tools that it calls. A tool may be another gateway, which has no use for
// them.
var executorHeaders = []string{"Shallot-Call", "Shallot-Tool", "Shallot-Cancel"}

// internalHeaders are Shallot's own between its processes.
var internalHeaders = []string{
	"Shallot-Kind", "Shallot-Stage", "Shallot-Phase", "Shallot-Attempt", "Shallot-Path", "Shallot-Wire",
}

// KnownHeaders refuses a header of ours that callers may not send: an internal one, or one that there is not. What is
// misspelled would have no effect, and nobody would notice. names may repeat and hold headers of others; more are
// further headers that the caller's transport may have.
func KnownHeaders(names []string, more ...string) *messages.Fault {
	slices.Sort(names) // of two wrong ones the answer names the same one each time
	for _, name := range names {
		lower := strings.ToLower(name)
		is := func(known string) bool { return strings.EqualFold(known, name) }
		switch {
		case !strings.HasPrefix(lower, ourPrefix), slices.ContainsFunc(callerHeaders, is),
			slices.ContainsFunc(executorHeaders, is), slices.ContainsFunc(more, is):
		case slices.ContainsFunc(internalHeaders, is):
			return Invalid(shown(name), "header %s is internal to Shallot; leave it out", shown(name))
		default:
			return Invalid(shown(name), "there is no header %s%s", shown(name), suggestion(lower))
		}
	}
	return nil
}

func shown(name string) string {
	if len(name) > MaxMeta {
		return name[:MaxMeta] + "..."
	}
	return name
}

// suggestion names the header that is nearest, or all of them if none is near.
func suggestion(lower string) string {
	best, least := "", min(4, (len(lower)-len(ourPrefix)+1)/2)
	if len(lower) <= MaxMeta {
		for _, k := range callerHeaders {
			if d := distance(lower, strings.ToLower(k)); d < least {
				best, least = k, d
			}
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	return "; known: " + strings.Join(callerHeaders, ", ")
}

// distance is how many letters have to be put in, taken out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
