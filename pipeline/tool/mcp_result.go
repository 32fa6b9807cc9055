package tool

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// MetaNative is the key of the result metadata under which the native form of an MCP result travels.
const MetaNative = "mcp"

// MCPCall is what an MCP caller sent beside the arguments, for a tool of an MCP server.
type MCPCall struct {
	// Progress says that the caller wants progress messages.
	Progress bool `json:"progress,omitempty"`
	// LogLevel is the lowest level of the log messages that the caller wants; empty: none.
	LogLevel string `json:"logLevel,omitempty"`
	// Capabilities are the kinds of input that the caller can give: elicitation, sampling, roots.
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	// InputResponses and RequestState answer a result that asked for input.
	InputResponses json.RawMessage `json:"inputResponses,omitempty"`
	RequestState   string          `json:"requestState,omitempty"`
}

// HeaderMCPError is the key of a fault's headers under which an error of the protocol travels to MCP callers, as JSON.
const HeaderMCPError = "mcp-error"

// MCPError is an error of the protocol as an MCP server gave it.
type MCPError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Native is an MCP result as its server gave it, and the hash of the reply that it belongs to.
type Native struct {
	Result json.RawMessage `json:"result"`
	Of     string          `json:"of"`
}

// NativeHash is the hash of a reply for Native.
func NativeHash(reply []byte) string {
	sum := sha256.Sum256(reply)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// NativeMCP returns the native form of a finished call's reply. ok is false if there is none, or if a stage has changed
// the reply since: then only the reply is true.
func NativeMCP(c *messages.Call) (result json.RawMessage, ok bool) {
	if !c.HasReply() {
		return nil, false
	}
	reply := c.Reply()
	if text, isText := c.ReplyText(); isText {
		reply = []byte(text)
	} else if IsNativeMCP(reply) {
		return reply, true
	}
	var meta map[string]json.RawMessage
	var n Native
	if !c.Noted(messages.NoteMetadata, &meta) || json.Unmarshal(meta[MetaNative], &n) != nil || n.Of != NativeHash(reply) {
		return nil, false
	}
	return n.Result, true
}

// AsksForInput reports whether a reply is a question to the caller instead of a result. It must not be cached or kept.
func AsksForInput(reply []byte) bool {
	if gjson.GetBytes(reply, "resultType").String() != "input_required" {
		return false
	}
	return gjson.GetBytes(reply, "inputRequests").IsObject()
}

// IsNativeMCP reports whether a reply is an MCP result itself: content blocks, or a request for input.
func IsNativeMCP(reply []byte) bool {
	r := gjson.ParseBytes(reply)
	if !r.IsObject() {
		return false
	}
	if AsksForInput(reply) || r.Get("resultType").String() == "input_required" && r.Get("requestState").Exists() {
		return true // a question, or a server that asks to be called again later
	}
	content := r.Get("content")
	if !content.IsArray() || len(content.Array()) == 0 {
		return false
	}
	for _, b := range content.Array() {
		switch b.Get("type").String() {
		case "text", "image", "audio", "resource", "resource_link":
		default:
			return false
		}
	}
	known := true
	r.ForEach(func(k, _ gjson.Result) bool {
		switch k.Str {
		case "content", "structuredContent", "isError", "_meta", "resultType":
		default:
			known = false
		}
		return known
	})
	return known
}
