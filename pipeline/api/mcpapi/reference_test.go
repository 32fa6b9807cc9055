package mcpapi

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// TestMCPReferenceServers has the reference servers of npm behind: what they refuse from a client succeeds through
// Shallot. .ci/mcp names their node_modules in SHALLOT_MCP_NPM and the program in SHALLOT_MCP_NODE.
func TestMCPReferenceServers(t *testing.T) {
	modules, node := os.Getenv("SHALLOT_MCP_NPM"), os.Getenv("SHALLOT_MCP_NODE")
	if modules == "" || node == "" {
		t.Skip("SHALLOT_MCP_NPM and SHALLOT_MCP_NODE are not set; run .ci/mcp")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	file := filepath.Join(dir, "a.txt")
	require.NoError(t, os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600))
	quoted, err := json.Marshal(file)
	require.NoError(t, err)
	entry := func(name string) string {
		return filepath.Join(modules, "@modelcontextprotocol", "server-"+name, "dist", "index.js")
	}
	wire := filepath.Join(dir, "wire")
	servers := map[string][]string{
		// What goes over the wire is kept in two files.
		"everything": {"sh", "-c", `tee "$WIRE.in" | "$0" "$@" | tee "$WIRE.out"`, node, entry("everything"), "stdio"},
		"restarted":  {"sh", "-c", `sh -c 'echo "$PPID"' >"$WIRE.pid"; exec "$0" "$@"`, node, entry("everything"), "stdio"},
		"filesystem": {node, entry("filesystem"), dir},
		"memory":     {node, entry("memory")},
	}
	env := map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl"), "PATH": os.Getenv("PATH"),
		"WIRE": wire}
	var behind []map[string]any
	direct := map[string]*mcp.ClientSession{}
	for name, command := range servers {
		server := map[string]any{"name": name, "command": command, "env": env}
		if name == "restarted" {
			server["on-cancel"] = "restart"
		}
		behind = append(behind, server)
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = []string{"WIRE=" + wire + "-direct"}
		for k, v := range env {
			if k != "WIRE" {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
		}
		direct[name] = apitest.Connect(t, &mcp.CommandTransport{Command: cmd}, nil)
	}
	progressed := make(chan struct{}, 64)
	s := chainOf(t, 1, &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context,
		*mcp.ProgressNotificationClientRequest) {
		progressed <- struct{}{}
	}}, behind...)
	for _, c := range []struct{ server, tool, args, want string }{
		{"everything", "get-sum", `{"a":"2","b":3}`, "5"},
		{"filesystem", "read_text_file", `{"path":` + string(quoted) + `,"head":"1"}`, "one"},
		{"filesystem", "read_text_file", `{"path":` + string(quoted) + `,"head":null}`, "three"},
		{"memory", "create_entities", `{"entities":"[{\"name\":\"n1\",\"entityType\":\"t\",\"observations\":[\"o\"]}]"}`,
			"n1"},
		{"everything", "echo", `{"message":42}`, "42"},
	} {
		apitest.Offered(t, s, c.server+"_"+c.tool)
		r, err := direct[c.server].CallTool(t.Context(),
			&mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(c.args)})
		require.True(t, err != nil || r.IsError, "%s %s: the server itself takes it: the case shows nothing", c.tool, c.args)
		r = apitest.Invoke(t, s, c.server+"_"+c.tool, c.args)
		require.False(t, r.IsError, "%s %s: %s", c.tool, c.args, rawjson.Encode(r))
		require.Contains(t, apitest.TextOf(t, r), c.want)
	}
	t.Run("images and links pass", func(t *testing.T) {
		r := apitest.Invoke(t, s, "everything_get-tiny-image", `{}`)
		require.True(t, strings.Contains(string(rawjson.Encode(r.Content)), `"image"`))
	})
	slow := json.RawMessage(`{"duration":"60","steps":600}`)
	// begin calls the slow tool and returns when it runs.
	begin := func(t *testing.T, server string) (cancel func(), done chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &mcp.CallToolParams{Name: server + "_trigger-long-running-operation", Arguments: slow}
		p.SetProgressToken("slow")
		done = make(chan error, 1)
		go func() { _, err := s.CallTool(ctx, p); done <- err }()
		<-progressed
		return cancel, done
	}
	t.Run("a slow call is cancelled", func(t *testing.T) {
		cancel, done := begin(t, "everything")
		cancel()
		require.Error(t, <-done)
		// The slot is free (there is one), and the server takes the next call while most of the first would be left.
		require.False(t, apitest.Invoke(t, s, "everything_echo", `{"message":"next"}`).IsError)
		id, token := "", ""
		require.Eventually(t, func() bool { // it has been told, by the id of the call
			for _, m := range messagesIn(t, wire+".in") {
				if m.Get("params.name").Str == "trigger-long-running-operation" {
					id, token = m.Get("id").Raw, m.Get("params._meta.progressToken").Raw
				}
				if m.Get("method").Str == "notifications/cancelled" && id != "" && m.Get("params.requestId").Raw == id {
					return true
				}
			}
			return false
		}, 30*time.Second, 10*time.Millisecond)
		// This server's own loop does not look at the cancellation (docs/rough-edges.md): it counts on to the end, and says
		// so. Nothing of that reaches the caller, and it gives no answer.
		said := func() (n int) {
			for _, m := range messagesIn(t, wire+".out") {
				require.False(t, m.Get("id").Raw == id && m.Get("result").Exists(), "a cancelled call was answered")
				if m.Get("params.progressToken").Raw == token {
					n++
				}
			}
			return n
		}
		was := said()
		require.Eventually(t, func() bool { return said() > was }, 30*time.Second, 10*time.Millisecond,
			"the server heeds cancellation now: docs/rough-edges.md and docs/mcp.md say that it does not")
		for len(progressed) > 0 {
			<-progressed
		}
		was = said()
		require.Eventually(t, func() bool { return said() > was+2 }, 30*time.Second, 10*time.Millisecond)
		require.Empty(t, progressed, "progress of a cancelled call reached the caller")
	})
	t.Run("a slow call is cancelled and stops", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("it looks into /proc")
		}
		cancel, done := begin(t, "restarted")
		raw, err := os.ReadFile(wire + ".pid")
		require.NoError(t, err)
		proc := "/proc/" + strings.TrimSpace(string(raw))
		require.DirExists(t, proc)
		cancel()
		require.Error(t, <-done)
		require.Eventually(t, func() bool { _, err := os.Stat(proc); return err != nil }, 30*time.Second, 10*time.Millisecond,
			"on-cancel: restart ends the work for good")
		require.False(t, apitest.Invoke(t, s, "restarted_echo", `{"message":"next"}`).IsError)
	})
}

// messagesIn reads the messages that went over a connection so far.
func messagesIn(t *testing.T, file string) (out []gjson.Result) {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, line := range strings.Split(string(raw), "\n") {
		if gjson.Valid(line) {
			out = append(out, gjson.Parse(line))
		}
	}
	return out
}
