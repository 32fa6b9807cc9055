package api

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// ourPrefix begins the name of every header of Shallot, in any case.
const ourPrefix = "shallot-"

// callerHeaders are the headers of Shallot that callers may send with any request. One that a request does not use is
// ignored.
var callerHeaders = []string{
	"Shallot-Session", "Shallot-Run", "Shallot-User", "Shallot-Agent", "Shallot-Tenant", "Shallot-Timeout",
	"Shallot-Deadline", "Shallot-Only", "Shallot-Cache", "Shallot-Explain", HeaderStream,
}

// executorHeaders are what Shallot tells the tools that it calls. They are accepted because a tool may be another
// gateway.
var executorHeaders = []string{"Shallot-Call", "Shallot-Tool", "Shallot-Cancel"}

// internalHeaders are used between Shallot's own processes.
var internalHeaders = []string{
	"Shallot-Kind", "Shallot-Stage", "Shallot-Phase", "Shallot-Attempt", "Shallot-Path", "Shallot-Wire",
}

// KnownHeaders refuses a header of Shallot that callers must not send: an internal one, or an unknown one. A misspelled
// header would otherwise be ignored without anyone noticing. names may repeat and contain other headers, and is not the
// caller's any more; more are further headers that the caller's transport uses.
func KnownHeaders(names []string, more ...string) *messages.Fault {
	names = slices.DeleteFunc(names, func(name string) bool {
		return len(name) < len(ourPrefix) || !strings.EqualFold(name[:len(ourPrefix)], ourPrefix)
	})
	slices.Sort(names) // so that the answer always names the same one of two wrong headers
	for _, name := range names {
		is := func(known string) bool { return strings.EqualFold(known, name) }
		switch {
		case slices.ContainsFunc(callerHeaders, is), slices.ContainsFunc(executorHeaders, is), slices.ContainsFunc(more, is):
		case slices.ContainsFunc(internalHeaders, is):
			return Invalid(shown(name), "header %s is internal to Shallot; leave it out", shown(name))
		default:
			return Invalid(shown(name), "there is no header %s%s", shown(name), suggestion(strings.ToLower(name)))
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

// suggestion names the closest header, or all headers if none is close.
func suggestion(lower string) string {
	best, least := "", min(4, (len(lower)-len(ourPrefix)+1)/2)
	if len(lower) <= MaxMeta {
		for _, k := range callerHeaders {
			if d := messages.Distance(lower, strings.ToLower(k)); d < least {
				best, least = k, d
			}
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	return "; known: " + strings.Join(callerHeaders, ", ")
}
