package host

import (
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
	"github.com/shallot-nats/shallot/pipeline/toolbox/natstool"
)

// mcpServers are the configured MCP servers as the tool box takes them.
func mcpServers(servers []config.MCPServer) []mcp.Server {
	reveal := func(in map[string]config.Secret) map[string]string {
		out := map[string]string{}
		for k, v := range in {
			out[k] = v.Reveal()
		}
		return out
	}
	out := make([]mcp.Server, 0, len(servers))
	for _, s := range servers {
		out = append(out, mcp.Server{
			Name: s.Name, Command: s.Command, Env: reveal(s.Env), URL: s.URL.Reveal(), Headers: reveal(s.Headers),
			Tools: s.Tools, Prefix: mcpPrefix(s), Timeout: s.Timeout, OnCancel: s.OnCancel,
		})
	}
	return out
}

func mcpPrefix(s config.MCPServer) string {
	if s.Prefix != nil {
		return *s.Prefix
	}
	return s.Name + "_"
}

// MCP is what this process knows of the configured MCP servers. Beside tool calls they are asked wherever they are
// connected: see [natstool.MCP].
type MCP struct {
	*natstool.MCP
	servers []config.MCPServer
	clients *mcp.Clients // nil where no tools run, or no server is configured
}

// Servers are the configured MCP servers and the prefixes of their tools and prompts, in order.
func (m *MCP) Servers() (names, prefixes []string) {
	for _, s := range m.servers {
		names, prefixes = append(names, s.Name), append(prefixes, mcpPrefix(s))
	}
	return names, prefixes
}

// start connects the MCP servers of a process that runs tools, and answers what other processes ask of them.
func (m *MCP) start(answering func(nats.MsgHandler) nats.MsgHandler) error {
	if m.clients == nil {
		return nil
	}
	m.clients.Changed = func(server, what, uri string) {
		_ = m.Publish(tool.MCPChange{Server: server, What: what, URI: uri})
	}
	m.clients.Start()
	names, _ := m.Servers()
	return m.Serve(names, m.clients.Do, answering)
}

func (m *MCP) stop() {
	if m.clients != nil {
		m.clients.Close()
		m.Close()
	}
}
