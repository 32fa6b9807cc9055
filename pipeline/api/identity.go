package api

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
)

// The roles of a key. An operator may also use the control surfaces and act for any tenant.
const (
	RoleCaller   = "caller"
	RoleOperator = "operator"
)

// Identity is who makes a request. It comes from the server's own records or the way the server listens, never from the
// request.
type Identity struct {
	KeyID  string // empty where no keys are configured
	Tenant string
	Role   string
	User   string   // overrides what the caller says, if set
	Models []string // patterns; empty means all
	Agents []string
	Tools  []string
}

// Who names the identity for the audit.
func (id Identity) Who() string {
	if id.KeyID == "" {
		return "open"
	}
	return id.KeyID
}

// Operator reports whether the identity has the operator role.
func (id Identity) Operator() bool { return id.Role == RoleOperator }

// MayModel, MayAgent and MayTool report whether the identity's lists of patterns let the name through.
func (id Identity) MayModel(name string) bool { return messages.AnyGlob(id.Models, name) }

// MayAgent is MayModel for agents.
func (id Identity) MayAgent(name string) bool { return messages.AnyGlob(id.Agents, name) }

// MayTool is MayModel for tools.
func (id Identity) MayTool(name string) bool { return messages.AnyGlob(id.Tools, name) }

type identityKey struct{}

// WithIdentity returns a context that knows who makes a request.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// IdentityOf returns who makes a request, as WithIdentity noted it; the zero Identity if it did not.
func IdentityOf(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

type originKey struct{}

// WithOrigin returns a context that knows where a request came from, for the audit: "http 192.0.2.7:4242".
func WithOrigin(ctx context.Context, from string) context.Context {
	return context.WithValue(ctx, originKey{}, from)
}

// OriginOf returns where a request came from, as WithOrigin noted it.
func OriginOf(ctx context.Context) string {
	from, _ := ctx.Value(originKey{}).(string)
	return from
}
