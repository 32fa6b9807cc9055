// Package mcp runs the tools of MCP servers: programs that it starts and endpoints that it connects to. It registers
// what they offer and passes on what else they are asked. Package toolbox gives it calls; it knows no NATS.
package mcp
