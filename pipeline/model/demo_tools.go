package model

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// useTools makes demo/tools call the first tool of the request, or the one that tool_choice names; after tool
// messages it answers with their results.
func (a *demoAnswer) useTools(body []byte, msgs []chat.Msg, text string) {
	var results []string
	for i := len(msgs) - 1; i >= 0 && msgs[i].Role() == "tool"; i-- {
		results = append([]string{msgs[i].Text()}, results...)
	}
	if len(results) > 0 {
		a.text = strings.Join(results, "\n")
		return
	}
	raw, _ := rawjson.Field(body, "tools")
	tools := rawjson.Elements(raw)
	choice := gjson.GetBytes(body, "tool_choice")
	if len(tools) == 0 || choice.Str == "none" {
		a.text = "There is no tool that I could call. You said: " + text
		return
	}
	tool := tools[0]
	if want := choice.Get("function.name").Str; want != "" {
		for _, t := range tools {
			if (chat.ToolCall{Raw: t}).Name() == want {
				tool = t
			}
		}
	}
	args := example(gjson.GetBytes(tool, "function.parameters"), text, 0)
	if !gjson.Valid(args) || args[0] != '{' {
		args = "{}"
	}
	call := fmt.Appendf(nil, `{"id":"call_demo_%d","type":"function","function":{"name":%s,"arguments":%s}}`,
		len(msgs), rawjson.Encode(chat.ToolCall{Raw: tool}.Name()), rawjson.Encode(args))
	a.text, a.tools, a.finish = "", [][]byte{call}, "tool_calls"
}

// example makes a plausible value for a JSON schema: its default, const, first enum or example, or some value of its
// type. An object gets its required fields, or all if none is required.
func example(schema gjson.Result, text string, depth int) string {
	for _, path := range []string{"default", "const", "enum.0", "examples.0", "example"} {
		if v := schema.Get(path); v.Exists() {
			return v.Raw
		}
	}
	for _, path := range []string{"anyOf.0", "oneOf.0", "allOf.0"} {
		if v := schema.Get(path); v.Exists() && depth < 8 {
			return example(v, text, depth+1)
		}
	}
	kind := schema.Get("type")
	if kind.IsArray() {
		kind = kind.Get("0")
	}
	number := func(or string) string {
		for _, path := range []string{"minimum", "maximum"} {
			if v := schema.Get(path); v.Type == gjson.Number {
				return v.Raw
			}
		}
		return or
	}
	switch {
	case kind.Str == "object" || kind.Str == "" && (depth == 0 || schema.Get("properties").IsObject()):
		required := map[string]bool{}
		for _, r := range schema.Get("required").Array() {
			required[r.Str] = true
		}
		var pairs []string
		schema.Get("properties").ForEach(func(k, v gjson.Result) bool {
			if (required[k.Str] || len(required) == 0) && depth < 8 {
				pairs = append(pairs, k.Raw+":"+example(v, text, depth+1))
			}
			return true
		})
		return "{" + strings.Join(pairs, ",") + "}"
	case kind.Str == "array":
		if item := schema.Get("items"); item.IsObject() && depth < 8 {
			return "[" + example(item, text, depth+1) + "]"
		}
		return "[]"
	case kind.Str == "integer", kind.Str == "number":
		return number("1")
	case kind.Str == "boolean":
		return "true"
	case kind.Str == "null":
		return "null"
	}
	if text == "" {
		text = "demo"
	}
	return string(rawjson.Encode(text))
}

const failHelp = "I fail on request. Say: fail 429, fail 500, fail 401, fail quota, fail context, fail cut 3, " +
	"fail empty, fail html, fail malformed, fail timeout, fail refused."

// fail makes demo/fail do what the text asks for; done is false if it is to answer normally.
func (a *demoAnswer) fail(req *http.Request, text string) (res *http.Response, done bool, err error) {
	how, more := "", ""
	fields := strings.Fields(strings.ToLower(text))
	for i, w := range fields {
		if strings.Trim(w, ".,:;") != "fail" {
			continue
		}
		if i+1 < len(fields) {
			how = strings.Trim(fields[i+1], ".,:;")
		}
		if i+2 < len(fields) {
			more = strings.Trim(fields[i+2], ".,:;")
		}
		break
	}
	refuse := func(status int, kind, code string) (*http.Response, bool, error) {
		body := fmt.Appendf(nil, `{"error":{"message":"demo/fail was asked for status %d","type":%q,`+
			`"param":null,"code":%q}}`, status, kind, code)
		res := respond(req, status, "application/json", body)
		if status == http.StatusTooManyRequests && kind != "insufficient_quota" {
			res.Header.Set("Retry-After", "1")
		}
		return res, true, nil
	}
	switch how {
	case "":
		a.text = failHelp
		return nil, false, nil
	case "quota":
		return refuse(429, "insufficient_quota", "insufficient_quota")
	case "context":
		return refuse(400, "invalid_request_error", "context_length_exceeded")
	case "empty":
		a.text = ""
		return nil, false, nil
	case "cut":
		a.text = "These words come before the connection breaks, and more were to follow after them."
		a.cut = 3
		if n, err := strconv.Atoi(more); err == nil && n > 0 {
			a.cut = n
			a.text = strings.TrimSpace(strings.Repeat("word ", min(n, 1000)+1))
		}
		return nil, false, nil
	case "html":
		return respond(req, http.StatusOK, "text/html", []byte("<html><body>502 Bad Gateway</body></html>")), true, nil
	case "malformed":
		return respond(req, http.StatusOK, "text/event-stream",
			[]byte("data: {\"choices\":[{\"delta\":{\"content\":\n\n")), true, nil
	case "timeout":
		<-req.Context().Done()
		return nil, true, req.Context().Err()
	case "refused":
		return nil, true, fmt.Errorf("connection refused, as asked")
	}
	status, err := strconv.Atoi(how)
	switch {
	case err != nil || status < 400 || status > 599:
		a.text = failHelp
		return nil, false, nil
	case status == http.StatusTooManyRequests:
		return refuse(status, "rate_limit_error", "rate_limit_exceeded")
	case status >= 500:
		return refuse(status, "server_error", "server_error")
	case status == http.StatusNotFound:
		return refuse(status, "invalid_request_error", "model_not_found")
	}
	return refuse(status, "invalid_request_error", "demo_fail")
}
