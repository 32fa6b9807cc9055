package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// work is the body of a tool: a are the arguments, told the caller's answers so far.
type work func(ctx context.Context, a object, told mcp.InputResponseMap) (*mcp.CallToolResult, error)

// addTaskTools makes the tools of the suite's scenarios of the Tasks extension. This server does not know tasks: its
// calls take long, fail or ask, and the gateway makes tasks of them.
func addTaskTools(s *mcp.Server) {
	text := func(format string, args ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	tool := func(name string, properties object, run work) {
		schema := object{"type": "object"}
		if properties != nil {
			schema["properties"] = properties
		}
		s.AddTool(&mcp.Tool{Name: name, Description: "Works for a while.", InputSchema: schema},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				a := object{}
				if len(req.Params.Arguments) > 0 {
					if err := json.Unmarshal(req.Params.Arguments, &a); err != nil {
						return nil, err
					}
				}
				return run(ctx, a, req.Params.InputResponses)
			})
	}
	wait := func(ctx context.Context, d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d): // simulated: the work of a tool
			return nil
		}
	}
	name := object{"name": object{"type": "string"}}
	tool("greet", name, func(_ context.Context, a object, _ mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		return text("Hello, %v!", a["name"]), nil
	})
	tool("slow_compute", object{"seconds": object{"type": "number"}, "label": object{"type": "string"}},
		func(ctx context.Context, a object, _ mcp.InputResponseMap) (*mcp.CallToolResult, error) {
			seconds, _ := a["seconds"].(float64)
			if err := wait(ctx, time.Duration(seconds*float64(time.Second))); err != nil {
				return nil, err
			}
			return text("computed %v in %v s", a["label"], seconds), nil
		})
	tool("failing_job", nil, func(ctx context.Context, _ object, _ mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		if err := wait(ctx, time.Second); err != nil {
			return nil, err
		}
		r := text("the job failed")
		r.IsError = true
		return r, nil
	})
	tool("protocol_error_job", nil, func(context.Context, object, mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32050, Message: "the job broke"}
	})
	asks := func(questions map[string]string) *mcp.CallToolResult {
		r := &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}
		for key, message := range questions {
			r.InputRequests[key] = elicit(message, object{
				"confirm": object{"type": "boolean"}, "name": object{"type": "string"},
			})
		}
		return r
	}
	confirm := func(_ context.Context, a object, told mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		if told["confirm"] == nil {
			return asks(map[string]string{"confirm": fmt.Sprintf("Delete %v?", a["filename"])}), nil
		}
		return text("deleted %v", a["filename"]), nil
	}
	tool("confirm_delete", object{"filename": object{"type": "string"}}, confirm)
	tool("multi_input", nil, func(_ context.Context, _ object, told mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		if told["first"] == nil || told["second"] == nil {
			return asks(map[string]string{"first": "The first?", "second": "The second?"}), nil
		}
		return text("got both"), nil
	})
	greet := func(ctx context.Context, _ object, told mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		answer, ok := told["user_name"].(*mcp.ElicitResult)
		if !ok {
			return asks(map[string]string{"user_name": "Who are you?"}), nil
		}
		if err := wait(ctx, 3*time.Second); err != nil {
			return nil, err
		}
		return text("Hello, %v!", answer.Content["name"]), nil
	}
	tool("test_tool_with_task", nil, greet)
}
