package tool

import (
	"errors"
	"fmt"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"net/url"
	"strings"
)

// checkURL refuses what no tool may name: other schemes, no host, a password in the URL.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is no http(s) URL", args.Clip(s))
	case u.User != nil:
		return errors.New("no user or password in a URL; use headers with ${VAR}")
	}
	return nil
}

// checkSubject refuses what is no subject that a tool can listen on. A tool that does not come from the operator's file
// may not name a subject of the server's own: a request there would be a command to NATS.
func checkSubject(s string, source Source) error {
	switch {
	case s == "":
		return nil // the tool's name
	case len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }):
		return fmt.Errorf("%q is no subject to publish to: no wildcards, blanks or control characters", args.Clip(s))
	case strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, ".."):
		return fmt.Errorf("%q has an empty token", args.Clip(s))
	case source != Operator && (strings.HasPrefix(s, "$") || strings.HasPrefix(s, "_INBOX")):
		return fmt.Errorf("%q belongs to the NATS server; only the operator's file may name it", args.Clip(s))
	}
	return nil
}
