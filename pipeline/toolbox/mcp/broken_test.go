//go:build unix

package mcp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
)

// answers are the ways in which the servers below answer a call: %s is its id. Each is the name of a tool.
var answers = map[string]string{
	"cut":      `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"hal`,
	"comma":    `{"jsonrpc":"2.0","id":%s,"result":{"content":[],}}`,
	"id_last":  `{"result":{"content":[{"id":77,}]},"jsonrpc":"2.0","id":%s}`,
	"nan":      `{"jsonrpc":"2.0","id":%s,"result":{"structuredContent":{"x":NaN},"content":[]}}`,
	"large":    `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"LONG"}]}}`,
	"end_last": `{"result":{"content":[{"type":"text","text":"LONG"}]},"jsonrpc":"2.0","id":%s}`,
	"good":     `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"good"}]}}`,
}

// reply answers one request; empty: nothing is answered.
func reply(line []byte) string {
	id := gjson.GetBytes(line, "id").Raw
	switch method := gjson.GetBytes(line, "method").Str; {
	case id == "":
		return ""
	case method == "initialize":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18",`+
			`"capabilities":{"tools":{}},"serverInfo":{"name":"b","version":"1"}}}`, id)
	case method == "tools/list":
		list := []string{}
		for name := range answers {
			list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, id, strings.Join(list, ","))
	case method == "tools/call":
		out := fmt.Sprintf(answers[gjson.GetBytes(line, "params.name").Str], id)
		return strings.Replace(out, "LONG", strings.Repeat("x", 17<<20), 1)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, id)
}

// broken is a program that answers calls with what is no JSON.
func broken() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if out := reply(in.Bytes()); out != "" {
			fmt.Println(out)
		}
	}
}

// An answer that cannot be read ends its call at once, says why, and ends no other.
func TestAnUnreadableAnswerEndsItsCallAtOnce(t *testing.T) { // (TL-11)
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		out := reply(body)
		if out == "" {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = io.WriteString(w, out)
	}))
	t.Cleanup(srv.Close)
	for where, server := range map[string]mcp.Server{
		"stdio": {Name: "up", Command: []string{os.Args[0]},
			Env: map[string]string{"SHALLOT_TEST_MCP": t.TempDir(), "SHALLOT_TEST_MANNERS": "broken"}},
		"http": {Name: "up", URL: srv.URL},
	} {
		m, reg := connected(t, server)
		for _, name := range []string{"cut", "comma", "id_last", "nan", "large", "end_last", "good"} {
			if where == "http" && (name == "large" || name == "end_last") {
				continue
			}
			t.Run(where+" "+name, func(t *testing.T) {
				d, err := reg.Get(t.Context(), name)
				require.NoError(t, err)
				begin := time.Now()
				r, err := m.Execute(t.Context(), toolbox.Invocation{Tool: d, Arguments: json.RawMessage(`{}`)})
				require.Less(t, time.Since(begin), 30*time.Second)
				if name == "good" {
					require.NoError(t, err, "the connection still stands")
					require.Equal(t, "good", string(r.Content))
					return
				}
				f := faultOf(t, err)
				require.Equal(t, messages.ToolError, f.Code, f.Message)
				want := "not valid JSON"
				if name == "large" || name == "end_last" {
					want = "longer than 16777216 bytes"
				}
				require.Contains(t, f.Message, want)
			})
		}
	}
}
