package mcp

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// maxBeside is the largest native form of a result that is noted beside the reply; a larger one becomes the reply.
const maxBeside = 16 << 10

// resultOf makes a result of what tools/call returned, byte for byte.
//
// If it has only text, that text is the content; with a structured object, that object is. Anything else (images,
// links, a request for input) makes the whole native object the content, so that every stage sees all of it. If the
// content is less than the native form, that form is put into the metadata with the hash of the content that it belongs
// to: a stage that edits the reply invalidates it (see [NativeMCP]).
func resultOf(raw json.RawMessage) toolbox.Result {
	at := func(path string) gjson.Result { return gjson.GetBytes(raw, path) }
	r := toolbox.Result{IsError: at("isError").Bool(), Metadata: map[string]any{}}
	native := slim(raw)
	texts, only := textsOf(at("content"))
	structured := at("structuredContent")
	if structured.Exists() && structured.Type != gjson.Null {
		r.Structured = json.RawMessage(structured.Raw)
	}
	switch {
	case at("resultType").String() != "" && at("resultType").String() != "complete", !only:
		r.Content, r.Structured = native, nil
		return r
	case structured.IsObject() && !r.IsError:
		r.Content = []byte(structured.Raw)
	default:
		r.Content = []byte(strings.Join(texts, "\n"))
	}
	if tool.IsNativeMCP(afterTravel(r.Content)) { // text or an object that only looks like a native result
		r.Content, r.Structured = native, nil
		return r
	}
	if len(texts) == 1 && r.Structured == nil && plain(native) && string(afterTravel(r.Content)) == texts[0] {
		return r // the text is the whole result
	}
	if len(native) > maxBeside {
		r.Content, r.Structured = native, nil
		return r
	}
	r.Metadata[tool.MetaNative] = tool.Native{Result: native, Of: tool.NativeHash(afterTravel(r.Content))}
	return r
}

// slim removes what belongs to the connection and not to the result.
func slim(raw json.RawMessage) json.RawMessage {
	out := raw
	if gjson.GetBytes(out, "resultType").String() == "complete" {
		out = rawjson.DropField(out, "resultType")
	}
	if meta, ok := rawjson.Field(out, "_meta"); ok {
		meta = rawjson.DropField(meta, "io.modelcontextprotocol/serverInfo")
		if string(bytes.TrimSpace(meta)) == "{}" {
			out = rawjson.DropField(out, "_meta")
		} else {
			out = rawjson.SetField(out, "_meta", meta)
		}
	}
	return out
}

// plain reports whether a result of one text has nothing besides.
func plain(native json.RawMessage) bool {
	ok := true
	gjson.ParseBytes(native).ForEach(func(k, _ gjson.Result) bool {
		ok = ok && (k.Str == "content" || k.Str == "isError")
		return ok
	})
	gjson.GetBytes(native, "content.0").ForEach(func(k, _ gjson.Result) bool {
		ok = ok && (k.Str == "type" || k.Str == "text")
		return ok
	})
	return ok
}

// textsOf returns the texts of the content. only is false if there is other content too.
func textsOf(content gjson.Result) (texts []string, only bool) {
	only = true
	for _, c := range content.Array() {
		if c.Get("type").String() != "text" {
			only = false
			continue
		}
		texts = append(texts, c.Get("text").String())
	}
	return texts, only
}

// afterTravel is content as it comes out of a call, where JSON is compacted.
func afterTravel(content []byte) []byte {
	c := messages.NewCall(messages.Tool, "", nil)
	c.SetReply(content)
	if text, ok := c.ReplyText(); ok {
		return []byte(text)
	}
	return c.Reply()
}
