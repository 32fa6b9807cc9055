// Command mcp-fixture is an MCP server on stdio with those tools of the conformance suite that ask the caller for
// something. They ask in the form of revision 2026-07-28, with a result that says what is wanted, so that the question
// can pass a chain of processes. The gateway asks clients of older revisions over their session.
//
//lint:file-ignore SA1019 the suite still asks for sampling
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type object = map[string]any

func main() {
	s := mcp.NewServer(&mcp.Implementation{Name: "mcp-fixture", Version: "1"}, nil)
	add(s, "test_sampling", object{"prompt": object{"type": "string"}}, func(a object) mcp.InputRequest {
		return &mcp.CreateMessageWithToolsParams{MaxTokens: 100, Messages: []*mcp.SamplingMessageV2{
			{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(a["prompt"])}}},
		}}
	})
	add(s, "test_elicitation", object{"message": object{"type": "string"}}, func(a object) mcp.InputRequest {
		return elicit(fmt.Sprint(a["message"]), object{
			"username": object{"type": "string", "description": "Your name"},
			"email":    object{"type": "string", "description": "Your address"},
		})
	})
	add(s, "test_elicitation_sep1034_defaults", nil, func(object) mcp.InputRequest {
		return elicit("Check the defaults", object{
			"name":     object{"type": "string", "default": "John Doe"},
			"age":      object{"type": "integer", "default": 30},
			"score":    object{"type": "number", "default": 95.5},
			"status":   object{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
			"verified": object{"type": "boolean", "default": true},
		})
	})
	add(s, "test_elicitation_sep1330_enums", nil, func(object) mcp.InputRequest {
		plain := []string{"option1", "option2", "option3"}
		titled := []object{
			{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"},
		}
		return elicit("Choose", object{
			"untitledSingle": object{"type": "string", "enum": plain},
			"titledSingle":   object{"type": "string", "oneOf": titled},
			"legacyEnum": object{
				"type": "string", "enum": []string{"opt1", "opt2", "opt3"}, "enumNames": []string{"One", "Two", "Three"},
			},
			"untitledMulti": object{"type": "array", "items": object{"type": "string", "enum": plain}},
			"titledMulti":   object{"type": "array", "items": object{"anyOf": titled}},
		})
	})
	addTaskTools(s)
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func elicit(message string, properties object) mcp.InputRequest {
	return &mcp.ElicitParams{Message: message, RequestedSchema: object{"type": "object", "properties": properties}}
}

// add makes a tool that asks first and then says what it was told.
func add(s *mcp.Server, name string, properties object, question func(arguments object) mcp.InputRequest) {
	schema := object{"type": "object"}
	if properties != nil {
		schema["properties"] = properties
	}
	s.AddTool(&mcp.Tool{Name: name, Description: "Asks the caller.", InputSchema: schema},
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			told, ok := req.Params.InputResponses["question"]
			if !ok {
				var a object
				if err := json.Unmarshal(req.Params.Arguments, &a); err != nil {
					return nil, err
				}
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"question": question(a)}}, nil
			}
			raw, err := json.Marshal(told)
			if err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Told: " + string(raw)}}}, nil
		})
}
