package config

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// rules checks what depends on several keys, or cannot be said as a bound.
func (c *checker) rules(cfg *Config) {
	if e := &cfg.Tool.Executor; e.CorePool > e.MaxPool {
		if c.at["tool.executor.core-pool"] == nil {
			e.CorePool = e.MaxPool // the operator did not ask for more
		} else {
			c.fail("tool.executor.core-pool", "%d is above max-pool, which is %d", e.CorePool, e.MaxPool)
		}
	}
	for prefix := range cfg.Tool.Timeout.Prefixes {
		if prefix == "" {
			c.fail("tool.timeout.prefixes", "an empty prefix matches every tool; use tool.timeout.default")
		}
	}
	c.http(cfg.HTTP)
	if cfg.Worker.Admin != "" {
		c.address("worker.admin", cfg.Worker.Admin)
	}
	c.nats(cfg)
	c.models(cfg.Models)
	c.remote(cfg)
	c.tools(cfg.Tool)
	var names []string
	for i, a := range cfg.Agent.Agents {
		at := fmt.Sprintf("agent.agents[%d]", i)
		names = c.unique(names, a.Name, at+".name")
		c.agent(a, at+".")
	}
}

// agent checks one agent, whose keys stand below at.
func (c *checker) agent(a AgentSpec, at string) {
	c.object(a.OutputSchema, at+"output-schema")
	for key, rule := range a.State {
		if rule != "append" && rule != "replace" {
			c.fail(at+"state."+key, "%q; known: append, replace", clip(rule))
		}
	}
}

// unique reports a name that a list has twice. It returns the names so far.
func (c *checker) unique(names []string, name, path string) []string {
	if name != "" && slices.Contains(names, name) {
		c.fail(path, "%q stands in the list twice; names are unique", clip(name))
	}
	return append(names, name)
}

func (c *checker) object(schema JSON, path string) {
	if len(schema) > 0 && !bytes.HasPrefix(schema, []byte("{")) && string(schema) != "null" {
		c.fail(path, "a JSON Schema is a mapping, such as {type: object}")
	}
}

func (c *checker) address(path, addr string) {
	_, port, err := net.SplitHostPort(addr)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 {
		c.fail(path, "%q is not host:port with a port of 0 to 65535, such as 127.0.0.1:8080", clip(addr))
	}
}

func (c *checker) http(h HTTP) {
	c.address("http.addr", h.Addr)
	if h.Admin != "" {
		c.address("http.admin", h.Admin)
		if h.Admin == h.Addr && !strings.HasSuffix(h.Addr, ":0") {
			c.fail("http.admin", "the same as http.addr; operators have a listener of their own")
		}
	}
	for i, o := range h.AllowedOrigins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil ||
			strings.Contains(o, "*") {
			c.fail(fmt.Sprintf("http.allowed-origins[%d]", i),
				"no origin; write scheme://host or scheme://host:port, without * and path")
		}
	}
}

func (c *checker) nats(cfg *Config) {
	n, embedded := cfg.NATS, cfg.Embedded()
	if n.URL != "" && n.Context != "" {
		c.fail("nats.context", "nats.url is given too; keep one of them")
	}
	for u := range strings.SplitSeq(string(n.URL), ",") {
		if u = strings.TrimSpace(u); u == "" {
			if n.URL != "" {
				c.fail("nats.url", "an empty address in the list")
			}
			continue
		}
		if !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		p, err := url.Parse(u)
		if err != nil || p.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, p.Scheme) {
			c.fail("nats.url", "no NATS address; it looks like nats://host:4222 (or tls, ws, wss)")
		}
	}
	for i, p := range n.InboxPrefixes {
		if own := cfg.Bus.Root + "."; strings.HasPrefix(p, own) || strings.HasPrefix(own, p) {
			c.fail(fmt.Sprintf("nats.inbox-prefixes[%d]", i),
				"%q covers subjects of Shallot itself; answers there would act in its name", clip(p))
		}
	}
	if (n.TLS.Cert == "") != (n.TLS.Key == "") {
		c.fail("nats.tls", "cert and key go together; one is missing")
	}
	if embedded && n.Replicas > 1 {
		c.fail("nats.replicas", "%d, but the embedded server holds one copy; give nats.url of a cluster, or 1",
			n.Replicas)
	}
	// The embedded server has NATS' own max_payload; that of others is checked when they are connected.
	if limit := MiB; embedded && cfg.Bus.ClaimCheck >= limit {
		c.fail("bus.claim-check",
			"%s is not below the largest NATS message of the embedded server, %s; 256KiB leaves room for the call",
			cfg.Bus.ClaimCheck, limit)
	} else if limit := 64 * MiB; cfg.Bus.ClaimCheck >= limit {
		c.fail("bus.claim-check", "%s is not below the largest message that any NATS server takes, %s",
			cfg.Bus.ClaimCheck, limit)
	}
}

func (c *checker) models(m Models) {
	var names []string
	for i, p := range m.Providers {
		at := fmt.Sprintf("models.providers[%d]", i)
		names = c.unique(names, p.Name, at+".name")
		if p.BaseURL != "" {
			if why := p.BaseURL.web(); why != "" {
				c.fail(at+".base-url", "%s", why)
			}
		}
		for j, w := range p.Wires {
			if !slices.Contains([]string{"chat", "responses", "messages"}, w) {
				c.fail(fmt.Sprintf("%s.wires[%d]", at, j), "%q; known: chat, responses, messages", w)
			}
		}
		for j, name := range p.Models {
			if strings.TrimSpace(name) == "" {
				c.fail(fmt.Sprintf("%s.models[%d]", at, j), "an empty name; * stands for any")
			}
		}
	}
	if t := m.Timeouts; t.FirstToken > t.Total {
		c.fail("models.timeouts.first-token", "%s is above total, which is %s", t.FirstToken, t.Total)
	} else if t.Idle > t.Total {
		c.fail("models.timeouts.idle", "%s is above total, which is %s", t.Idle, t.Total)
	}
}

func (c *checker) tools(t Tooling) {
	var servers, names []string
	for i, m := range t.MCPServers {
		at := fmt.Sprintf("tool.mcp-servers[%d]", i)
		servers = c.unique(servers, m.Name, at+".name")
		switch {
		case (len(m.Command) == 0) == (m.URL == ""):
			c.fail(at, "a server has a command or a url, one of them")
		case m.URL != "":
			if why := m.URL.web(); why != "" {
				c.fail(at+".url", "%s", why)
			}
			if m.OnCancel == "restart" {
				c.fail(at+".on-cancel", "only a program (command) can be started again")
			}
		case m.Command[0] == "":
			c.fail(at+".command", "the program is empty")
		}
	}
	for i, d := range t.Tools {
		at := fmt.Sprintf("tool.tools[%d]", i)
		version := d.Version
		if version == "" {
			version = "1"
		}
		if d.Name != "" {
			names = c.unique(names, d.Name+"@"+version, at+".name")
		}
		c.object(d.InputSchema, at+".input-schema")
		c.object(d.OutputSchema, at+".output-schema")
		switch e := d.Executor; e.Kind {
		case "http":
			if why := URL(e.URL).web(); why != "" {
				c.fail(at+".executor", "%s", why)
			}
		case "mcp":
			if !slices.Contains(servers, e.Name) {
				hint := ""
				if s := suggest(e.Name, servers); s != "" {
					hint = "; did you mean " + s + "?"
				}
				c.fail(at+".executor", "tool.mcp-servers has no %q%s", clip(e.Name), hint)
			}
		}
	}
}

// Embedded reports whether the embedded server is used, because neither nats.url nor nats.context is given.
func (c *Config) Embedded() bool { return c.NATS.URL == "" && c.NATS.Context == "" }
