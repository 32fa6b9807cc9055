package tool

import (
	"crypto/sha256"
	"encoding/hex"
)

// MCPName is the name under which a server's tool or prompt is offered: the configured prefix and the name, with an
// underscore for each character that a model API refuses. A name above 64 characters ends in eight characters of its
// hash instead, so that two long names remain different.
func MCPName(prefix, name string) string {
	out := notInModel.ReplaceAllString(prefix+name, "_")
	if len(out) <= maxModelName {
		return out
	}
	sum := sha256.Sum256([]byte(name))
	return out[:maxModelName-9] + "_" + hex.EncodeToString(sum[:4])
}

// Methods other than tool calls that an MCP server is asked for.
const (
	MCPPrompts     = "prompts/list"
	MCPPrompt      = "prompts/get"
	MCPResources   = "resources/list"
	MCPTemplates   = "resources/templates/list"
	MCPRead        = "resources/read"
	MCPComplete    = "completion/complete"
	MCPSubscribe   = "resources/subscribe"
	MCPUnsubscribe = "resources/unsubscribe"
)

// MCPChange says that something at an MCP server changed: its prompts, its resources, or one resource.
type MCPChange struct {
	Server string `json:"server"`
	What   string `json:"what"` // tools | prompts | resources | resource
	URI    string `json:"uri,omitempty"`
}
