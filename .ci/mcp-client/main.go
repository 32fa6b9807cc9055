// Command mcp-client lets the conformance suite test the gateway as a client of MCP servers. The suite serves a
// scenario and gives its URL as the last argument. This command starts "gateway mcp" (MCP_CI_BIN/gateway), connected to
// that server, and calls the server's tools, prompts and resources through the whole chain.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[len(os.Args)-1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	dir, err := os.MkdirTemp("", "mcp-client-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	config := filepath.Join(dir, "shallot.yaml")
	text := fmt.Sprintf("version: 1\ntool:\n  mcp-servers: [{name: up, url: %q}]\n", url)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(os.Getenv("MCP_CI_BIN"), "gateway"), "mcp", "--config", config)
	cmd.Stderr = os.Stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "mcp-client", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"confirmed": true}}, nil
		},
	})
	s, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	tools, err := offered(ctx, s)
	if err != nil {
		return err
	}
	for _, c := range calls(tools) {
		r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: c.Name, Arguments: c.Arguments})
		log.Printf("call %s: %+v %v", c.Name, r, err)
	}
	if l, err := s.ListResources(ctx, nil); err == nil && len(l.Resources) > 0 {
		_, err = s.ReadResource(ctx, &mcp.ReadResourceParams{URI: l.Resources[0].URI})
		log.Println("resource:", err)
	}
	if l, err := s.ListPrompts(ctx, nil); err == nil && len(l.Prompts) > 0 {
		_, err = s.GetPrompt(ctx, &mcp.GetPromptParams{Name: l.Prompts[0].Name})
		log.Println("prompt:", err)
	}
	return nil
}

// offered waits until the server's tools are listed, and its prompts and resources, which are listed after them.
func offered(ctx context.Context, s *mcp.ClientSession) ([]*mcp.Tool, error) {
	if os.Getenv("MCP_CONFORMANCE_SCENARIO") == "request-metadata" { // without tools, the first list is complete
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
	}
	last := 0
	for {
		var tools []*mcp.Tool
		for t, err := range s.Tools(ctx, nil) {
			if err != nil && ctx.Err() == nil {
				return nil, err
			}
			if err == nil && strings.HasPrefix(t.Name, prefix) {
				tools = append(tools, t)
			}
		}
		if len(tools) > 0 && len(tools) == last { // none came within a second
			return tools, nil
		}
		pause := 100 * time.Millisecond
		if last = len(tools); last > 0 {
			pause = time.Second
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return tools, nil // a scenario without tools
		}
	}
}

type call struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

// prefix begins the names of the server's tools.
const prefix = "up_"

// calls are the calls that the scenario asks for, or one call of every tool.
func calls(tools []*mcp.Tool) []call {
	var wanted struct {
		ToolCalls []call `json:"toolCalls"`
	}
	if json.Unmarshal([]byte(os.Getenv("MCP_CONFORMANCE_CONTEXT")), &wanted) == nil && len(wanted.ToolCalls) > 0 {
		for i := range wanted.ToolCalls {
			wanted.ToolCalls[i].Name = prefix + wanted.ToolCalls[i].Name
		}
		return wanted.ToolCalls
	}
	var out []call
	var focal any
	for _, t := range tools {
		if t.Name == prefix+"json_schema_2020_12_tool" {
			focal = t.InputSchema
		}
	}
	for _, t := range tools {
		args := map[string]any{}
		schema, _ := t.InputSchema.(map[string]any)
		declared, _ := schema["properties"].(map[string]any)
		for name, value := range map[string]any{"a": 5, "b": 3, "schema": focal} {
			if _, ok := declared[name]; ok { // a name that the tool does not declare would be refused
				args[name] = value
			}
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if n, ok := name.(string); ok && args[n] == nil {
				args[n] = "x"
			}
		}
		out = append(out, call{t.Name, args})
	}
	return out
}
