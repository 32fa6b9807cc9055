package tool

import (
	"mime"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// MetaBinary is the key of the result metadata that says that a result is no text: its media type. The result itself is
// an MCP result of one block then - image, audio, or a resource - with the bytes as base64, for callers of every face.
const MetaBinary = "binary"

// Binary makes the result of bytes that are no text. call names the call they belong to.
func Binary(mediaType string, data []byte, call string) []byte {
	type block struct {
		Type     string `json:"type"`
		Data     []byte `json:"data"`
		MimeType string `json:"mimeType"`
	}
	kind, _, _ := strings.Cut(mediaType, "/")
	var content any = block{kind, data, mediaType}
	if kind != "image" && kind != "audio" {
		content = map[string]any{"type": "resource", "resource": map[string]any{
			"uri": "shallot:///results/" + call, "mimeType": mediaType, "blob": data,
		}}
	}
	return rawjson.Encode(map[string]any{"content": []any{content}})
}

// textTypes are media types beside text/* and those that end in +json, +xml or +yaml whose bytes are text.
var textTypes = []string{"json", "xml", "javascript", "ecmascript", "x-ndjson", "ndjson", "jsonl", "jsonlines", "yaml", "x-yaml", "toml", "sql", "graphql",
	"x-www-form-urlencoded", "x-sh", "json-seq"}

// MediaType is the media type of a content type without its parameters; empty if there is none. text says that its bytes
// are text, and so are those of no type.
func MediaType(contentType string) (mediaType string, text bool) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil && mediaType == "" {
		return "", true
	}
	kind, sub, _ := strings.Cut(mediaType, "/")
	if kind == "text" {
		return mediaType, true
	}
	if i := strings.LastIndexByte(sub, '+'); i >= 0 {
		switch sub[i+1:] {
		case "json", "xml", "yaml":
			return mediaType, kind != "image" // an SVG is a picture to whoever shows it
		}
	}
	for _, t := range textTypes {
		if kind == "application" && sub == t {
			return mediaType, true
		}
	}
	return mediaType, false
}
