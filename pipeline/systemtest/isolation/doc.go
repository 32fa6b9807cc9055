// Package isolation tests what callers cannot do to each other, and what they cannot do to the doors that they come in
// by: over HTTP, MCP and NATS, on a server with the permissions of deploy/nats-permissions.conf.
package isolation
