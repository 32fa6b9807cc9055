package api

import (
	"context"
	"slices"

	"github.com/shallot-nats/shallot/messages"
)

// The roles of contracts T3.
const (
	RoleCaller   = "caller"
	RoleOperator = "operator"
)

// Identity is who makes a request: from the server's own record or from how it listens, never from the request.
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
func (id Identity) MayModel(name string) bool { return allowed(id.Models, name) }

// MayAgent is MayModel for agents.
func (id Identity) MayAgent(name string) bool { return allowed(id.Agents, name) }

// MayTool is MayModel for tools.
func (id Identity) MayTool(name string) bool { return allowed(id.Tools, name) }

func allowed(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(patterns, func(p string) bool { return messages.Glob(p, name) })
}

type identityKey struct{}

// WithIdentity returns a context that knows who makes a request.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// IdentityOf returns who makes a request, as WithIdentity noted it; nobody if it did not.
func IdentityOf(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
