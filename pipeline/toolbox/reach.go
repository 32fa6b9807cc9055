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

// Reach is what tools that do not come from the operator's file may reach.
type Reach struct {
	Networks []netip.Prefix // beside the public internet
	Subjects messages.Subjects
	Classes  []string // of work; an MCP server has one
}

// Check refuses what a definition of the API must not name (private addresses, subjects of this installation) and what
// nothing here could run.
func (r Reach) Check(d *tool.Definition) *messages.Fault {
	bad := func(at, format string, args ...any) *messages.Fault {
		return messages.NewFault(messages.InvalidRequest, "tool definition %q: "+format,
			append([]any{d.Name}, args...)...).At(at).From("registry")
	}
	switch d.Executor.Kind {
	case tool.ExecHTTP:
		u, err := url.Parse(d.Executor.URL)
		if err != nil {
			return bad("executor.url", "the URL cannot be read")
		}
		ip, err := netip.ParseAddr(u.Hostname())
		host := strings.ToLower(u.Hostname())
		local := host == "localhost" || strings.HasSuffix(host, ".localhost")
		if local && err != nil {
			ip, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
		}
		allowed := func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) }
		if err == nil && !Public(ip) && !slices.ContainsFunc(r.Networks, allowed) {
			return bad("executor.url", "%s is not a public address; define the tool in the configuration file, "+
				"or name the network in tool.api-networks", u.Host)
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
