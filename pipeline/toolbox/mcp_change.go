package toolbox

// MCPChange says that something at an MCP server changed: its prompts, its resources, or one resource.
type MCPChange struct {
	Server string `json:"server"`
	What   string `json:"what"` // tools | prompts | resources | resource
	URI    string `json:"uri,omitempty"`
}
