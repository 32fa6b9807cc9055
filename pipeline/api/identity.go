package api

import (
	"context"
	"strings"
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
	for _, p := range patterns {
		if Globs(p, name) {
			return true
		}
	}
	return false
}

// Globs matches a pattern in which * stands for any run of characters, slashes too.
func Globs(pattern, name string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
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
