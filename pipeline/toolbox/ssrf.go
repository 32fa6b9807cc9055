package toolbox

import "net/netip"

// nat64 embeds IPv4 addresses in IPv6 ones; a private one must not hide there.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// special are address ranges beside those that package netip knows: shared (CGN), benchmarks, documentation, protocol
// assignments, 6to4 and Teredo, IPv4-compatible addresses, reserved.
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

// Public reports whether an address belongs to the open internet, and not to this machine, a private network or the
// metadata service of a cloud, in whichever form it is written.
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
