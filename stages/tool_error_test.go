package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

func TestToolErrorText(t *testing.T) {
	t.Parallel()
	const url = "postgres://app:s3cr3t@db.local:5432/x"
	for in, want := range map[string]string{
		"connect " + url + ": refused":               "connect postgres://***@db.local:5432/x: refused",
		"amqp://u:p@ss@host/v":                       "amqp://***@host/v",
		"Server=db;Password=hunter2;User=sa":         "Server=db;Password=***;User=sa",
		`{"api_key": "abcdef123456", "q":1}`:         `{"api_key": "***", "q":1}`,
		"401 for Authorization: Bearer abcdefgh1234": "401 for Authorization: Bearer ***",
		"bad key sk-proj-abcdefghijklmnop":           "bad key ***",
		"ghp_abcdefghijklmnopqrstuvwxyz0123456789 x": "*** x",
		"GET https://h/p?token=abcdefgh&x=1":         "GET https://h/p?token=***&x=1",
		"eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc-def":  "***",
		"max_tokens=4096 and unexpected token: end":  "max_tokens=4096 and unexpected token: end",
		"plain words https://example.com/a@b stay":   "plain words https://example.com/a@b stay",
		"-----BEGIN PRIVATE KEY-----\nMIIE\nx":       "***",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := newToolChain(t, stages.Deps{}, map[string]string{"tool-fallback": "off", "tool-retry": "max-retries: 0"},
				gives(reading("x"), errors.New(in)))
			out := c.Run(t, "x", `{}`)
			require.Equal(t, "tool 'x' failed: "+want, out.Fault.Message)
			require.Equal(t, messages.ToolError, out.Fault.Code)
		})
	}
	t.Run("the tool's own headers", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, map[string]string{"tool-fallback": "off", "tool-retry": "max-retries: 0"},
			gives(reading("x"), errors.New("refused qwertyuiop")))
		c.defs["x"].Executor.Headers = map[string]string{"Authorization": "Key qwertyuiop"}
		require.Equal(t, "tool 'x' failed: refused ***", c.Run(t, "x", `{}`).Fault.Message)
	})
	t.Run("a tool that panics", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, chainTool{reading("x"),
			func(context.Context, int, json.RawMessage) (toolbox.Result, error) { panic("oh") }})
		require.Equal(t, "internal_error", graceful(t, c.Run(t, "x", `{}`))["error"])
	})
}
