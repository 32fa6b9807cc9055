package mcpapi

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// rawContent is a content block that is sent byte for byte. The embedded Content is the SDK's reading of it.
type rawContent struct {
	mcp.Content
	raw json.RawMessage
}

// MarshalJSON implements json.Marshaler.
func (c rawContent) MarshalJSON() ([]byte, error) { return c.raw, nil }

// metaChanged is the key of _meta that says how the arguments were changed, like the header Shallot-Changed.
const metaChanged = "shallot/changed"

// metaSchema is the key of _meta that says how a result differs from the tool's output schema.
const metaSchema = "shallot/output-schema"

func textResult(text string, meta map[string]any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Meta: meta, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// codeCancelled says that a request was cancelled. The protocol has no code for that, because the caller does not
// expect an answer; this one is from the Language Server Protocol.
const codeCancelled = -32800

// faultResult is a fault in the form of MCP: unknown tools and bad requests are errors of the protocol, everything else
// is a result that the model can read.
func faultResult(fault *messages.Fault, call string) (*mcp.CallToolResult, error) {
	meta := map[string]any{"shallot/fault": string(fault.Code), "shallot/retryable": fault.Retryable()}
	if call != "" {
		meta["shallot/call"] = call
	}
	if fault.RetryAfter > 0 {
		meta["shallot/retry-after-ms"] = fault.RetryAfter.Milliseconds()
	}
	var wire tool.MCPError
	raw := fault.Headers[tool.HeaderMCPError]
	if raw != "" && fault.Code == messages.InvalidRequest && json.Unmarshal([]byte(raw), &wire) == nil {
		return nil, &jsonrpc.Error{Code: wire.Code, Message: wire.Message, Data: wire.Data} // of the MCP server itself
	}
	switch fault.Code {
	case messages.ToolNotFound, messages.InvalidRequest, messages.TooLarge, messages.IdempotencyMismatch:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fault.Message, Data: rawjson.Encode(meta)}
	case messages.Cancelled:
		return nil, &jsonrpc.Error{Code: codeCancelled, Message: fault.Message, Data: rawjson.Encode(meta)}
	}
	r := textResult(fault.Message, meta)
	r.IsError = true
	return r, nil
}

// result makes the MCP result of a finished call. The result of an MCP server is sent as it came. Any other reply is
// text, with structured content if it is an object. alone says that the request's revision has no sessions.
func (f *Server) result(d *tool.Definition, c *messages.Call, alone bool) (*mcp.CallToolResult, error) {
	if c.Fault != nil {
		r, err := faultResult(c.Fault, c.ID)
		if changed := api.Changed(c); r != nil && len(changed) > 0 {
			r.Meta[metaChanged] = changed
		}
		return r, err
	}
	r := f.body(d, c, alone)
	r.IsError = r.IsError || c.Flag(messages.NoteIsError)
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	r.Meta["shallot/call"] = c.ID
	if changed := api.Changed(c); len(changed) > 0 {
		r.Meta[metaChanged] = changed
	}
	if fromCache(c) {
		r.Meta["shallot/from_cache"] = true // like the header Shallot-Cache
	}
	if edits := c.Edits(); edits != "" {
		r.Meta["shallot/edited"] = edits
	}
	text := degraded(c)
	if text != "" {
		r.Meta["shallot/degraded"] = text
		r.IsError = r.IsError || f.GracefulIsError && strings.HasPrefix(text, "graceful")
		if r.InputRequests == nil { // the model reads the content and not the marks
			r.Content = append(r.Content, &mcp.TextContent{Text: "Note: this result stands in for the real one (" + text + ")."})
		}
	}
	f.promise(d, r, text != "", alone)
	return r, nil
}

// promise keeps what the tool's listed output schema promises. Clients refuse a result without structured content, or
// with content that does not fit the schema, unless it is marked as an error. What does not fit is therefore sent as
// text, in an error that says what happened. The result of an MCP server is checked against its own schema too.
func (f *Server) promise(d *tool.Definition, r *mcp.CallToolResult, standIn, alone bool) {
	needsObject := !alone && gjson.GetBytes(d.OutputSchema, "type").String() != "object"
	if len(d.OutputSchema) == 0 || r.InputRequests != nil || needsObject {
		return // nothing was promised
	}
	structured, _ := r.StructuredContent.(json.RawMessage)
	if standIn && structured != nil {
		structured = rawjson.DropField(structured, messages.MarkField) // the mark is in _meta and in the text
		r.StructuredContent = structured
	}
	wrong := "it is text instead of structured content"
	if structured != nil {
		if wrong = d.CheckOutput(&f.parser, nil, structured); wrong == "" {
			return
		}
	}
	r.StructuredContent = nil
	if r.IsError {
		return
	}
	r.IsError = true
	r.Meta[metaSchema] = wrong
	if len(r.Content) == 0 && structured != nil {
		r.Content = append(r.Content, &mcp.TextContent{Text: string(structured)})
	}
	note := "Note: the tool ran, and this is what is left to show of its result; it is marked as an error only because " +
		"it does not fit the tool's output schema (" + wrong + ")."
	if standIn {
		note = "Note: it does not fit the tool's output schema either (" + wrong + ")."
	}
	r.Content = append(r.Content, &mcp.TextContent{Text: note})
}

// fromCache reports whether a result comes from the tool cache.
func fromCache(c *messages.Call) bool {
	var meta struct {
		FromCache bool `json:"from_cache"`
	}
	return c.Noted(messages.NoteMetadata, &meta) && meta.FromCache
}

// binary reports whether a result is not text.
func binary(c *messages.Call) bool {
	var meta struct {
		Binary string `json:"binary"`
	}
	return c.Noted(messages.NoteMetadata, &meta) && meta.Binary != ""
}

// degraded says what replaced the tool's own result: stale_cache, stub_data or graceful_error; empty if nothing did.
func degraded(c *messages.Call) string {
	var text string
	if c.Noted(messages.NoteDegraded, &text) && text != "" {
		return text
	}
	var meta struct {
		Fallback any `json:"fallback"`
	}
	if c.Noted(messages.NoteMetadata, &meta) {
		if s, ok := meta.Fallback.(string); ok {
			return s
		}
	}
	return ""
}

// body is the reply as a result; that of an MCP server as it came.
func (f *Server) body(d *tool.Definition, c *messages.Call, alone bool) *mcp.CallToolResult {
	if d.Executor.Kind == tool.ExecMCP || binary(c) {
		if raw, ok := tool.NativeMCP(c); ok {
			r, err := nativeResult(raw)
			if err == nil {
				return r
			}
			f.Log.Warn("the result of an MCP server cannot be read; its text goes out", "tool", d.Name, "call", c.ID, "err", err)
		}
	}
	if d.Executor.Kind == execAgent {
		return runResult(d, c, alone)
	}
	if text, ok := c.ReplyText(); ok {
		return textResult(text, nil)
	}
	reply := c.Reply()
	text, isText := rawjson.IsString(reply)
	if !isText {
		text = string(reply)
	}
	r := textResult(text, nil)
	// Before 2026-07-28 structured content is an object; since then it has the form of the output schema.
	if (alone && len(d.OutputSchema) > 0 || gjson.ParseBytes(reply).IsObject()) && !c.Flag(messages.NoteIsError) {
		r.StructuredContent = json.RawMessage(reply)
	}
	return r
}

// nativeResult reads an MCP result so that the same bytes are sent again.
func nativeResult(raw json.RawMessage) (*mcp.CallToolResult, error) {
	var read mcp.CallToolResult
	if err := json.Unmarshal(raw, &read); err != nil {
		return nil, err
	}
	r := &mcp.CallToolResult{IsError: read.IsError, InputRequests: read.InputRequests, RequestState: read.RequestState}
	content, _ := rawjson.Field(raw, "content")
	blocks := rawjson.Elements(content)
	for i, b := range blocks {
		if i < len(read.Content) {
			r.Content = append(r.Content, rawContent{Content: read.Content[i], raw: b})
		}
	}
	if s, ok := rawjson.Field(raw, "structuredContent"); ok && !rawjson.IsNull(s) {
		r.StructuredContent = json.RawMessage(s)
	}
	if m, ok := rawjson.Field(raw, "_meta"); ok {
		dec := json.NewDecoder(bytes.NewReader(m))
		dec.UseNumber()
		if err := dec.Decode(&r.Meta); err != nil {
			return nil, err
		}
	}
	return r, nil
}
