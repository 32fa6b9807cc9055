package toolbox_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"} {
		require.True(t, toolbox.Public(netip.MustParseAddr(s)), s)
	}
	for _, s := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
		"100.64.0.1", "224.0.0.1",
		"255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.0.8", "203.0.113.9", "::", "::1", "::ffff:127.0.0.1",
		"::ffff:10.0.0.1",
		"fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
		"2001:db8::1", "fec0::1", "::127.0.0.1", "3fff::1",
	} {
		require.False(t, toolbox.Public(netip.MustParseAddr(s)), s)
	}
	require.False(t, toolbox.Public(netip.Addr{}))
}
