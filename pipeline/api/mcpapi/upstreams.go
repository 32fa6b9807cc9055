package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"

	"github.com/shallot-nats/shallot/pipeline/tool"
)

// upstreams passes on the prompts and resources of the connected MCP servers. Prompts get the server's prefix;
// resources keep their URIs, and if two servers have the same one, the first in the configuration serves it. These
// requests do not pass the chain, because they run nothing.
type upstreams struct {
	f        *Server
	names    []string
	prefixes []string

	news chan struct{}

	mu        sync.Mutex
	dirty     map[string]bool // server + "/" + what
	prompts   map[string]place
	resources map[string]place
	templates map[string]place
	watched   map[string]int // how often a resource is subscribed to
}

// place is the server that has something, and its name there.
type place struct{ server, name string }

func newUpstreams(f *Server, names, prefixes []string) *upstreams {
	b := &upstreams{
		f: f, names: names, prefixes: prefixes, news: make(chan struct{}, 1), dirty: map[string]bool{},
		prompts: map[string]place{}, resources: map[string]place{}, templates: map[string]place{}, watched: map[string]int{},
	}
	for _, n := range names {
		b.dirty[n+"/prompts"], b.dirty[n+"/resources"] = true, true
	}
	return b
}

// changed takes the news of a change from a server.
func (b *upstreams) changed(c tool.MCPChange) {
	if c.What == "resource" {
		_ = b.f.server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: c.URI})
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirty[c.Server+"/"+c.What] = true
	wake(b.news)
}

// sync lists again what changed. A server that does not answer is asked again at the next turn.
func (b *upstreams) sync(ctx context.Context) {
	for i, server := range b.names {
		b.turn(ctx, server, "prompts", func(ctx context.Context) error { return b.listPrompts(ctx, server, b.prefixes[i]) })
		b.turn(ctx, server, "resources", func(ctx context.Context) error { return b.listResources(ctx, server) })
	}
}

func (b *upstreams) turn(ctx context.Context, server, what string, list func(context.Context) error) {
	key := server + "/" + what
	b.mu.Lock()
	due := b.dirty[key]
	delete(b.dirty, key)
	b.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := list(ctx); err != nil {
		b.f.Log.Debug("an MCP server did not list", "mcp_server", server, "what", what, "err", err)
		b.mu.Lock()
		b.dirty[key] = true
		b.mu.Unlock()
	}
}

// query asks a server and decodes its answer.
func query[R any](ctx context.Context, b *upstreams, server, method string, params any) (R, error) {
	var r R
	raw, err := b.f.Upstreams.Ask(ctx, server, method, params)
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	return r, err
}

func (b *upstreams) listPrompts(ctx context.Context, server, prefix string) error {
	list, err := query[[]*mcp.Prompt](ctx, b, server, tool.MCPPrompts, nil)
	if err != nil {
		return err
	}
	now := map[string]place{}
	for _, p := range list {
		at := place{server, p.Name}
		p.Name = tool.MCPName(prefix, p.Name)
		if b.taken(b.prompts, p.Name, server) {
			continue
		}
		now[p.Name] = at
		b.f.server.AddPrompt(p, func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			params := *req.Params
			params.Name, params.Meta = at.name, capabilitiesOnly(params.Meta)
			return query[*mcp.GetPromptResult](ctx, b, at.server, tool.MCPPrompt, &params)
		})
	}
	b.f.server.RemovePrompts(b.replace(b.prompts, server, now)...)
	return nil
}

func (b *upstreams) listResources(ctx context.Context, server string) error {
	list, err := query[[]*mcp.Resource](ctx, b, server, tool.MCPResources, nil)
	if err != nil {
		return err
	}
	templates, err := query[[]*mcp.ResourceTemplate](ctx, b, server, tool.MCPTemplates, nil)
	if err != nil {
		return err
	}
	read := func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		params := *req.Params
		params.Meta = capabilitiesOnly(params.Meta)
		return query[*mcp.ReadResourceResult](ctx, b, server, tool.MCPRead, &params)
	}
	now := map[string]place{}
	for _, r := range list {
		if u, err := url.Parse(r.URI); err != nil || u.Scheme == "" || b.taken(b.resources, r.URI, server) {
			continue
		}
		now[r.URI] = place{server, r.URI}
		b.f.server.AddResource(r, read)
	}
	b.f.server.RemoveResources(b.replace(b.resources, server, now)...)
	now = map[string]place{}
	for _, t := range templates {
		if _, err := uritemplate.New(t.URITemplate); err != nil || b.taken(b.templates, t.URITemplate, server) {
			continue
		}
		now[t.URITemplate] = place{server, t.URITemplate}
		b.f.server.AddResourceTemplate(t, read)
	}
	b.f.server.RemoveResourceTemplates(b.replace(b.templates, server, now)...)
	return nil
}

// capabilitiesOnly keeps only the caller's capabilities of a _meta.
func capabilitiesOnly(m mcp.Meta) mcp.Meta {
	if caps, ok := m[mcp.MetaKeyClientCapabilities].(map[string]any); ok {
		out := map[string]any{}
		for _, k := range []string{"elicitation", "sampling", "roots"} {
			if v, ok := caps[k]; ok {
				out[k] = v
			}
		}
		return mcp.Meta{mcp.MetaKeyClientCapabilities: out}
	}
	return nil
}

func (b *upstreams) taken(in map[string]place, key, by string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := in[key]
	return ok && p.server != by
}

// replace replaces what a server had by what it has now and returns what is gone.
func (b *upstreams) replace(in map[string]place, server string, now map[string]place) (gone []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, p := range in {
		if _, still := now[key]; p.server == server && !still {
			gone = append(gone, key)
			delete(in, key)
		}
	}
	for key, p := range now {
		in[key] = p
	}
	return gone
}

func (b *upstreams) find(in map[string]place, key string) (place, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := in[key]
	return p, ok
}

// complete passes a completion to the server of its prompt or template.
func (b *upstreams) complete(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	params := *req.Params
	if params.Ref == nil {
		return nil, invalidParams("ref is missing")
	}
	ref := *params.Ref
	at, ok := b.find(b.prompts, ref.Name)
	if ref.Type == "ref/resource" {
		if at, ok = b.find(b.templates, ref.URI); !ok {
			at, ok = b.find(b.resources, ref.URI)
		}
	} else {
		ref.Name = at.name
	}
	if !ok {
		return nil, invalidParams("there is no such prompt or resource")
	}
	params.Ref, params.Meta = &ref, nil
	return query[*mcp.CompleteResult](ctx, b, at.server, tool.MCPComplete, &params)
}

// owner finds the server of a resource, by the resource's URI or by a template.
func (b *upstreams) owner(uri string) (string, bool) {
	if all := b.owners(uri); len(all) > 0 {
		return all[0], true
	}
	return "", false
}

// owners are the servers that a resource may come from: the one that lists it, and those with a matching template.
func (b *upstreams) owners(uri string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	if at, ok := b.resources[uri]; ok {
		out = append(out, at.server)
	}
	for t, at := range b.templates {
		if u, err := uritemplate.New(t); err == nil && u.Match(uri) != nil {
			out = append(out, at.server)
		}
	}
	return out
}

func (b *upstreams) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	server, ok := b.owner(req.Params.URI)
	if !ok {
		return mcp.ResourceNotFoundError(req.Params.URI)
	}
	_, err := query[struct{}](ctx, b, server, tool.MCPSubscribe, &mcp.SubscribeParams{URI: req.Params.URI})
	var wire *jsonrpc.Error
	if errors.As(err, &wire) && wire.Code == jsonrpc.CodeMethodNotFound {
		err = nil // the server sends no news, so there will be none
	}
	if err == nil {
		b.mu.Lock()
		b.watched[req.Params.URI]++
		b.mu.Unlock()
	}
	return err
}

func (b *upstreams) unsubscribe(ctx context.Context, req *mcp.UnsubscribeRequest) error {
	uri := req.Params.URI
	server, ok := b.owner(uri)
	if !ok {
		return mcp.ResourceNotFoundError(uri)
	}
	b.mu.Lock()
	b.watched[uri]--
	last := b.watched[uri] <= 0
	if last {
		delete(b.watched, uri)
	}
	b.mu.Unlock()
	if !last {
		return nil
	}
	_, err := query[struct{}](ctx, b, server, tool.MCPUnsubscribe, &mcp.UnsubscribeParams{URI: uri})
	var wire *jsonrpc.Error
	if errors.As(err, &wire) && wire.Code == jsonrpc.CodeMethodNotFound {
		return nil
	}
	return err
}
