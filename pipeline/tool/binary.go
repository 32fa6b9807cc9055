package tool

import (
	"mime"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// MetaBinary is the key of the result metadata that holds the media type of a result that is not text. Such a result is
// an MCP result with one block - image, audio or resource - and its bytes as base64, whichever face the caller uses.
const MetaBinary = "binary"

// Binary makes the result of bytes that are not text. call is the id of the call they belong to.
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

// textTypes are the media types whose bytes are text, beside text/* and those that end in +json, +xml or +yaml.
var textTypes = []string{
	"json", "xml", "javascript", "ecmascript", "x-ndjson", "ndjson", "jsonl", "jsonlines", "yaml", "x-yaml", "toml",
	"sql", "graphql", "x-www-form-urlencoded", "x-sh", "json-seq",
}

// MediaType is the media type of a content type without its parameters; empty if there is none. text says whether its
// bytes are text, which bytes without a type are taken for.
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
			return mediaType, kind != "image" // people see a picture in an SVG, not its source
		}
	}
	for _, t := range textTypes {
		if kind == "application" && sub == t {
			return mediaType, true
		}
	}
	return mediaType, false
}
