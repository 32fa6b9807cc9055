package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// gate is passed by every request of the MCP server. What a key may not use is neither listed nor reachable, and the
// lists have the form of the caller's revision.
func (f *Server) gate(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		id, _ := f.caller(req.GetExtra())
		if err := f.mayAsk(id, req.GetParams()); err != nil {
			return nil, err
		}
		res, err := next(ctx, method, req)
		if unknownTool(method, err) && f.registeredSince(ctx, req.GetParams()) {
			if err := f.mayAsk(id, req.GetParams()); err != nil {
				return nil, err
			}
			res, err = next(ctx, method, req)
		}
		if err != nil {
			return res, withHint(method, err)
		}
		//lint:ignore SA1019 sessions of older revisions still set it
		if set, ok := req.GetParams().(*mcp.SetLoggingLevelParams); ok {
			if session, ok := req.GetSession().(*mcp.ServerSession); ok {
				f.logs.set(session, string(set.Level))
			}
		}
		switch r := res.(type) {
		case *mcp.ListToolsResult:
			r.Tools = keep(r.Tools, func(t *mcp.Tool) bool { return f.mayTool(id, t.Name) })
			if !standsAlone(req.GetParams()) {
				r.Tools = olderTools(r.Tools)
			}
		case *mcp.ListPromptsResult:
			r.Prompts = keep(r.Prompts, func(p *mcp.Prompt) bool { return id.MayTool(p.Name) })
		case *mcp.ListResourcesResult:
			r.Resources = keep(r.Resources, func(x *mcp.Resource) bool { return f.upstreams.may(id, x.URI) })
		case *mcp.ListResourceTemplatesResult:
			r.ResourceTemplates = keep(r.ResourceTemplates, func(x *mcp.ResourceTemplate) bool {
				return f.upstreams.mayTemplate(id, x.URITemplate)
			})
		}
		return res, nil
	}
}

// standsAlone reports whether a request carries its revision, as all requests do since 2026-07-28. The revision of a
// session is older, whatever its client asked for.
func standsAlone(params mcp.Params) bool {
	v, _ := params.GetMeta()[mcp.MetaKeyProtocolVersion].(string)
	return v >= firstSessionless
}

// unknownTool reports whether err says that a call names a tool that is not listed.
func unknownTool(method string, err error) bool {
	var wire *jsonrpc.Error
	return method == "tools/call" && errors.As(err, &wire) && wire.Code == jsonrpc.CodeInvalidParams &&
		strings.HasPrefix(wire.Message, "unknown tool")
}

// withHint adds a hint to the error about an unknown tool: tools/list shows the tools.
func withHint(method string, err error) error {
	var wire *jsonrpc.Error
	if unknownTool(method, err) && errors.As(err, &wire) {
		more := *wire
		more.Message += "; tools/list shows all tools"
		return &more
	}
	return err
}

// keep is the list without what may not be seen. It is never nil, because the lists of the protocol are arrays.
func keep[T any](list []T, may func(T) bool) []T {
	return slices.DeleteFunc(append(make([]T, 0, len(list)), list...), func(t T) bool { return !may(t) })
}

// mayAsk refuses what the key's list of tools does not allow. Prompts are named like the tools of their server and
// follow the same patterns. The resources of a server are for keys that may call all its tools.
func (f *Server) mayAsk(id api.Identity, params mcp.Params) error {
	if len(id.Tools)+len(id.Agents) == 0 {
		return nil
	}
	var uris []string
	switch p := params.(type) {
	case *mcp.CallToolParamsRaw:
		if !f.mayTool(id, p.Name) {
			return notAllowed("the key may not call tool %q; tools/list shows the tools that it may call", p.Name)
		}
	case *mcp.GetPromptParams:
		if !id.MayTool(p.Name) {
			return notAllowed("the key may not use prompt %q; prompts/list shows the prompts that it may use", p.Name)
		}
	case *mcp.CompleteParams:
		switch {
		case p.Ref == nil:
		case p.Ref.Type == "ref/resource":
			uris = []string{p.Ref.URI}
		case !id.MayTool(p.Ref.Name):
			return notAllowed("the key may not use prompt %q; prompts/list shows the prompts that it may use", p.Ref.Name)
		}
	case *mcp.ReadResourceParams:
		uris = []string{p.URI}
	case *mcp.SubscribeParams:
		uris = []string{p.URI}
	case *mcp.UnsubscribeParams:
		uris = []string{p.URI}
	case *mcp.SubscriptionsListenParams:
		if p.Notifications != nil {
			uris = p.Notifications.ResourceSubscriptions
		}
	}
	for _, uri := range uris {
		if !f.upstreams.may(id, uri) {
			return mcp.ResourceNotFoundError(uri) // like one that does not exist
		}
	}
	return nil
}

// notAllowed is a refusal in terms of the protocol. It does not depend on whether the thing exists.
func notAllowed(format string, name string) error {
	return &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, name),
		Data: rawjson.Encode(map[string]any{"shallot/fault": messages.Forbidden, "shallot/retryable": false}),
	}
}

// may reports whether the key may use a resource: it must be allowed to call every tool of each server that has it.
func (b *upstreams) may(id api.Identity, uri string) bool {
	if len(id.Tools) == 0 {
		return true
	}
	for _, server := range b.owners(uri) {
		if !b.mayServer(id, server) {
			return false
		}
	}
	return true
}

func (b *upstreams) mayTemplate(id api.Identity, template string) bool {
	at, ok := b.find(b.templates, template)
	return !ok || b.mayServer(id, at.server)
}

// mayServer matches the key's patterns against the pattern of all tools of the server.
func (b *upstreams) mayServer(id api.Identity, server string) bool {
	i := slices.Index(b.names, server)
	return i >= 0 && id.MayTool(b.prefixes[i]+"*")
}

// olderTools are tools in the form of the revisions before 2026-07-28: an output schema has the type object, and the
// schema of a property is an object. Their clients refuse a whole list for one tool of another form.
func olderTools(list []*mcp.Tool) []*mcp.Tool {
	for i, t := range list {
		in, out := plainProperties(t.InputSchema), plainProperties(t.OutputSchema)
		if out != nil && gjson.GetBytes(out, "type").String() != "object" {
			out = nil
		}
		older := *t
		older.InputSchema, older.OutputSchema = in, nil
		if out != nil {
			older.OutputSchema = out
		}
		list[i] = &older
	}
	return list
}

// plainProperties replaces the property schemas true and false by objects with the same meaning.
func plainProperties(schema any) json.RawMessage {
	raw, ok := schema.(json.RawMessage)
	if !ok {
		return nil
	}
	properties, ok := rawjson.Field(raw, "properties")
	if !ok {
		return raw
	}
	plain := properties
	gjson.ParseBytes(properties).ForEach(func(k, v gjson.Result) bool {
		switch v.Type {
		case gjson.True:
			plain = rawjson.SetField(plain, k.Str, []byte(`{}`))
		case gjson.False:
			plain = rawjson.SetField(plain, k.Str, []byte(`{"not":{}}`))
		}
		return true
	})
	if string(plain) == string(properties) {
		return raw
	}
	return rawjson.SetField(raw, "properties", plain)
}
