package host

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// loginOf is what the embedded server asks; nil where no keys are configured.
func loginOf(o Options) func(user, password string) (embed.Rights, bool) {
	if o.Login == nil {
		return nil
	}
	return func(user, password string) (embed.Rights, bool) {
		id, ok := o.Login(user, password)
		if !ok {
			return embed.Rights{}, false
		}
		return rightsOf(&o.Config.Config, id), true
	}
}

// rightsOf are what the holder of a key may do on the embedded server. An operator may do everything, unless the key is
// for some models, agents or tools only. A caller asks on the subjects of the key's tenant and reads an inbox of their
// own, because whoever reads _INBOX.> reads the answers of all.
//
// A message does not say who sent it, so a key's lists can be held here only where a subject names what is asked for:
// who may use some models only asks for them and runs agents over HTTP, and who may use some agents or tools only asks
// here for those that the key names without a wildcard. Results tell of every call of the tenant, so such keys do not
// read them here, and submit nothing.
func rightsOf(c *config.Config, id api.Identity) embed.Rights {
	limited := len(id.Models)+len(id.Agents)+len(id.Tools) > 0
	if id.Operator() && !limited {
		return embed.Rights{All: true}
	}
	r := embed.Rights{Subscribe: []string{InboxOf(id.KeyID) + ".>"}}
	tenants := []string{id.Tenant}
	if id.Tenant == "default" && c.NATS.BareSubjects && !c.NATS.TrustTenantHeader {
		tenants = append(tenants, "")
	}
	s := messages.Subjects{Root: c.Bus.Root}
	for _, t := range tenants {
		if len(id.Models) == 0 {
			r.Publish = append(r.Publish, s.TenantRequest(t, messages.Model))
			r.Publish = append(r.Publish, agentSubjects(s, t, id.Agents)...) // runs ask models too
		}
		r.Publish = append(r.Publish, toolSubjects(s, t, id.Tools)...)
		if !limited {
			for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
				r.Publish = append(r.Publish, s.TenantSubmit(t, kind))
			}
			r.Publish = append(r.Publish, s.AgentSubmit(t, "*"), verbOf(s, t, "result", "*"))
		}
		for _, v := range verbs(&seen{}, &TodoLists{}, nil) {
			if v.Operators {
				continue
			}
			r.Publish = append(r.Publish, verbOf(s, t, strings.Split(v.Name, ".")...))
		}
	}
	return r
}

func toolSubjects(s messages.Subjects, tenant string, tools []string) (out []string) {
	if len(tools) == 0 {
		return []string{s.TenantRequest(tenant, messages.Tool)}
	}
	for _, name := range tools {
		if !strings.Contains(name, "*") {
			out = append(out, s.ToolRequest(tenant, name))
		}
	}
	return out
}

func agentSubjects(s messages.Subjects, tenant string, agents []string) (out []string) {
	if len(agents) == 0 {
		return []string{s.TenantRequest(tenant, messages.Agent), s.AgentRequest(tenant, "*")}
	}
	for _, name := range agents {
		if !strings.Contains(name, "*") {
			out = append(out, s.AgentRequest(tenant, name))
		}
	}
	return out
}

func verbOf(s messages.Subjects, tenant string, verb ...string) string {
	if tenant != "" {
		verb = slices.Concat([]string{"tenant", messages.Token(tenant)}, verb)
	}
	return s.Control(verb...)
}

// InboxOf is the prefix of the inboxes of a key's holder on the embedded server.
func InboxOf(key string) string { return "_INBOX_" + messages.Token(key) }
