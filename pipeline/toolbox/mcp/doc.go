// Package mcp runs the tools of MCP servers: programs that it starts and endpoints that it connects to. It registers
// the tools that they offer and passes on other requests to them. Package toolbox gives it calls; it does not know
// NATS.
package mcp
