package host_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// The whole tool chain over a real bus: a large result is saved and read back by the tool for it, a second call is a
// cache hit, a failing tool gives its marked stand-in.
func TestToolChainOverTheBus(t *testing.T) {
	t.Parallel()
	h := started(t, "version: 1\nagent: {interceptor: {tool-retry: {base-delay: 1ms}, large-result-eviction: "+
		"{token-threshold: 100}}}\n")
	large := runTool(t, h, "largeText", `{"lines":100}`)
	text, ok := large.ReplyText()
	require.True(t, ok, "%s %v", large.Reply(), large.Fault)
	_, rest, found := strings.Cut(text, "[The full result is saved at: ")
	require.True(t, found, text)
	at, _, _ := strings.Cut(rest, "]")
	again := runTool(t, h, "largeText", `{"lines":100.0}`)
	require.True(t, again.Flag(messages.NoteCacheHit))
	require.Equal(t, large.Reply(), again.Reply())
	part := runTool(t, h, "readEvictedResult", string(rawjson.Encode(map[string]any{"path": at})))
	require.Nil(t, part.Fault)
	require.Contains(t, text, gjson.GetBytes(part.Reply(), "text").String()[:100])
	require.Contains(t, text, gjson.GetBytes(part.Reply(), "total").Raw+" chars")
	stub := runTool(t, h, "failing", `{"how":"network"}`)
	require.Equal(t, `{"note":"sample data, not a real result","_shallot":{"fallback":"stub_data"}}`, string(stub.Reply()))
	require.Equal(t, 3, stub.Slip.Tries, "networkRetry")
	unknown := runTool(t, h, "nowhere", `{}`)
	require.Equal(t, "tool_not_found", gjson.GetBytes(unknown.Reply(), "error").String(), "X-32: %v", unknown.Fault)
}

func runTool(t *testing.T, h *host.Host, name, args string) *messages.Call {
	t.Helper()
	return end(t, h, pipeline.Request{Kind: messages.Tool, Tool: name, Body: []byte(args), Tenant: "default"})
}
