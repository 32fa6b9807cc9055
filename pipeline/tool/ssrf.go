package tool

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// nat64 carries IPv4 addresses inside IPv6 ones; a private one must not hide there.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// special are address ranges beside those that package netip tells by itself: shared (CGN), benchmarks, documentation,
// protocol assignments, 6to4 and Teredo, IPv4-compatible addresses, reserved.
var special = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "fec0::/10",
	"::/96", "3fff::/20", "5f00::/16")

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// Public reports whether an address is one of the open internet: not this machine, not a private network, not the
// metadata service of a cloud, in whichever way it is written.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range special {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}

// checkURL refuses what no tool may name: other schemes, no host, a password in the URL.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is no http(s) URL", clip(s))
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
		return fmt.Errorf("%q is no subject to publish to: no wildcards, blanks or control characters", clip(s))
	case strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, ".."):
		return fmt.Errorf("%q has an empty token", clip(s))
	case source != Operator && (strings.HasPrefix(s, "$") || strings.HasPrefix(s, "_INBOX")):
		return fmt.Errorf("%q belongs to the NATS server; only the operator's file may name it", clip(s))
	}
	return nil
}
