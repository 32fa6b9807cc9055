package tool

import (
	"errors"
	"fmt"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"net/url"
	"strings"
)

// checkURL refuses URLs that no tool may name: with another scheme, without a host, or with a password.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is not an http(s) URL", args.Clip(s))
	case u.User != nil:
		return errors.New("a URL must not hold a user or a password; use headers with ${VAR}")
	}
	return nil
}

// checkSubject refuses what is not a subject that a tool can listen on. A tool that does not come from the operator's
// file may not name a subject of the NATS server itself, where a request would be a command to NATS.
func checkSubject(s string, source Source) error {
	switch {
	case s == "":
		return nil // the tool's name
	case len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }):
		return fmt.Errorf("%q cannot be published to: no wildcards, blanks or control characters", args.Clip(s))
	case strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, ".."):
		return fmt.Errorf("%q has an empty token", args.Clip(s))
	case source != Operator && (strings.HasPrefix(s, "$") || strings.HasPrefix(s, "_INBOX")):
		return fmt.Errorf("%q belongs to the NATS server; only the operator's file may name it", args.Clip(s))
	}
	return nil
}
