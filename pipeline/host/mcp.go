package host

import (
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
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

// startMCP connects the MCP servers of a process that runs tools, and answers what other processes ask of them beside
// tool calls.
func (h *Host) startMCP() error {
	m := h.tools.mcp
	if m == nil {
		return nil
	}
	m.Changed = func(server, what, uri string) {
		_ = h.tools.mcpBus.Publish(tool.MCPChange{Server: server, What: what, URI: uri})
	}
	m.Start()
	names, _ := h.MCPNames()
	return h.tools.mcpBus.Serve(names, m.Do, h.Node.Answering)
}

// MCPNames are the configured MCP servers and the prefixes of their tools and prompts, in order.
func (h *Host) MCPNames() (names, prefixes []string) {
	for _, s := range h.Config.Tool.MCPServers {
		names, prefixes = append(names, s.Name), append(prefixes, mcpPrefix(s))
	}
	return names, prefixes
}

// AskMCP asks an MCP server, wherever it is connected, for something that is not a tool call: see natstool.MCP.Ask.
func (h *Host) AskMCP(ctx context.Context, server, method string, params any) (json.RawMessage, error) {
	return h.tools.mcpBus.Ask(ctx, server, method, params)
}

// OnMCPChange calls f, from one goroutine, whenever an MCP server says that something changed. stop ends it.
func (h *Host) OnMCPChange(f func(tool.MCPChange)) (stop func(), err error) {
	return h.tools.mcpBus.OnChange(f)
}

// Tools lists the newest version of each tool in order of name.
func (h *Host) Tools(ctx context.Context) ([]*tool.Definition, error) {
	return h.tools.registry.List(ctx)
}

// FindTool returns the newest version of a tool; one that another process registered a moment ago is found too.
func (h *Host) FindTool(ctx context.Context, name string) (*tool.Definition, error) {
	return h.tools.registry.Get(ctx, name)
}
