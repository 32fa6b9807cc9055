//go:build unix

package golden

import (
	"fmt"
	"regexp"
	"strings"
)

// rules are what may differ from run to run, and what stands for it. Nothing else may.
var rules = []struct {
	name string
	expr *regexp.Regexp
	with string
}{
	{"the time of an HTTP answer", regexp.MustCompile(`(?m)^Date: .*$`), "Date: <date>"},
	{"points in time", regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "<time>"},
	{"seconds of a created object", regexp.MustCompile(`"(created|created_at)":[12]\d{9}\b`), `"$1":<seconds>`},
	{"how long a call took", regexp.MustCompile(`(Shallot-Duration-Ms:|"shallot/duration-ms":) ?"?\d+"?`), "$1 <ms>"},
	{"counted microseconds and milliseconds", regexp.MustCompile(`"(us|dur_ms|age_ms|waited_us)":\d+`), `"$1":<n>`},
	{"ids of the server's micro service", regexp.MustCompile(`"id":"[A-Za-z0-9]{22}"`), `"id":"<nuid>"`},
	{"names of processes", regexp.MustCompile(`"process":"[a-z0-9-]+"`), `"process":"<process>"`},
	{"revisions of the configuration", regexp.MustCompile(`"config_revision":"[0-9a-f]+"`),
		`"config_revision":"<revision>"`},
	{"the build", regexp.MustCompile(`"version":"\d+\.\d+\.\d+[^"]*"`), `"version":"<version>"`},
	{"sessions of MCP", regexp.MustCompile(`(?m)^Mcp-Session-Id: \S+`), "Mcp-Session-Id: <session>"},
	{"the time in an evicted result's name", regexp.MustCompile(`(largeText_)\d{13}`), "$1<millis>"},
	{"time that is left", regexp.MustCompile(`"left":\d+`), `"left":<nanos>`},
	{"hashes", regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<hash>"},
}

var (
	uuid = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	long = regexp.MustCompile(`(?:long ){100,}`)
)

// normal puts names for what differs. Ids are numbered as they come, so that one id in two places stays one.
func normal(g *gateway, text string) string {
	text = strings.NewReplacer(g.http, "<http>", g.nats, "<nats>").Replace(text)
	text = long.ReplaceAllString(text, "{long}")
	for _, r := range rules {
		text = r.expr.ReplaceAllString(text, r.with)
	}
	seen := map[string]string{}
	return uuid.ReplaceAllStringFunc(text, func(id string) string {
		if seen[id] == "" {
			seen[id] = fmt.Sprintf("<id %d>", len(seen)+1)
		}
		return seen[id]
	})
}
