package mcp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func goTool(name string, p tool.Policy) *tool.Definition {
	return &tool.Definition{Name: name, Version: "1", Policy: p, Executor: tool.Executor{Kind: "go"},
		Source: tool.Operator}
}

func call(name, arguments string) *messages.Call {
	c := messages.NewCall(messages.Tool, "default", []byte(arguments))
	c.Tool = name
	return c
}

func noEmit([]byte) error { return nil }

func faultOf(t *testing.T, err error) *messages.Fault {
	t.Helper()
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	return f
}
