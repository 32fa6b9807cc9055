package toolbox

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Reach is what tools that do not come from the operator's file may reach in this installation.
type Reach struct {
	Networks []netip.Prefix // beside the public internet
	Subjects messages.Subjects
	Classes  []string // work queues; an MCP server has one
}

// Check refuses what a definition of the API may not name, beside what every definition may not (SSRF, commands to
// our own installation), and what nothing here could run.
func (r Reach) Check(d *tool.Definition) *messages.Fault {
	bad := func(at, format string, args ...any) *messages.Fault {
		return messages.NewFault(messages.InvalidRequest, "tool definition %q: "+format, append([]any{d.Name}, args...)...).At(at).From("registry")
	}
	switch d.Executor.Kind {
	case tool.ExecHTTP:
		u, err := url.Parse(d.Executor.URL)
		if err != nil {
			return bad("executor.url", "the URL cannot be read")
		}
		ip, err := netip.ParseAddr(u.Hostname())
		local := strings.EqualFold(u.Hostname(), "localhost") || strings.HasSuffix(strings.ToLower(u.Hostname()), ".localhost")
		if local && err != nil {
			ip, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
		}
		if err == nil && !Public(ip) && !slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) }) {
			return bad("executor.url", "%s is not a public address; define the tool in the configuration file, or name the network in tool.api-networks", u.Host)
		}
	case tool.ExecNATS:
		if strings.HasPrefix(cmp.Or(d.Executor.Name, d.Name)+".", strings.TrimSuffix(r.Subjects.All(), ">")) {
			return bad("executor.name", "the subject %s is the installation's own", d.Executor.Name)
		}
	case tool.ExecMCP:
		if !slices.Contains(r.Classes, "mcp-"+d.Executor.Name) {
			return bad("executor.name", "there is no MCP server %q; only the configuration file names servers", d.Executor.Name)
		}
	}
	return nil
}
