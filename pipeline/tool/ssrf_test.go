package tool_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/tool"
)

func TestPublic(t *testing.T) { // security.md, SSRF
	t.Parallel()
	for _, s := range []string{"8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"} {
		require.True(t, tool.Public(netip.MustParseAddr(s)), s)
	}
	for _, s := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
		"255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.0.8", "203.0.113.9", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
		"fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1", "fec0::1", "::127.0.0.1", "3fff::1",
	} {
		require.False(t, tool.Public(netip.MustParseAddr(s)), s)
	}
	require.False(t, tool.Public(netip.Addr{}))
}

func TestSubjectsOfTools(t *testing.T) {
	t.Parallel()
	parser := &tool.Parser{}
	check := func(subject string, source tool.Source) error {
		d := tool.Definition{Name: "a", Executor: tool.Executor{Kind: tool.ExecNATS, Name: subject}, Source: source}
		return d.Validate(parser)
	}
	for _, s := range []string{"", "a", "a.b-c_d", "weather.get=2Ex"} {
		require.NoError(t, check(s, tool.Discovered), s)
	}
	for _, s := range []string{"a b", "a.*", ">", "a..b", ".a", "a.", "a\n", "\u00e9"} {
		require.Error(t, check(s, tool.Operator), s)
	}
	for _, s := range []string{"$JS.API.INFO", "$SYS.x", "_INBOX.a"} {
		require.Error(t, check(s, tool.API), s)
		require.Error(t, check(s, tool.Discovered), s)
		require.NoError(t, check(s, tool.Operator), s)
	}
}
