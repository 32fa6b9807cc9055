package stages_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages"
)

func TestToolPII(t *testing.T) {
	t.Parallel()
	d := stages.Deps{Section: func(string) any {
		return &stages.PIIConfig{Rules: append(rule("email", "REPLACE"), rule("credit_card", "MASK")...)}
	}}
	s, err := stageNamed(t, "tool-pii", d, nil)
	require.NoError(t, err)
	for in, want := range map[string]string{
		`plain joe@example.com`:                                `"plain [REDACTED_EMAIL]"`,
		`{"a":["joe@example.com",4.0],"joe@example.com":null}`: `{"a":["[REDACTED_EMAIL]",4.0],"joe@example.com":null}`,
		`4111111111111111`:                                     `"************1111"`,
		`"joe@example.com"`:                                    `"[REDACTED_EMAIL]"`,
		`{"n":9007199254740993}`:                               `{"n":9007199254740993}`,
		`null`:                                                 `null`,
		`{"content":[{"type":"text","text":"x joe@example.com"}],"isError":false}`: `{"content":[{"type":"text",` +
			`"text":"x [REDACTED_EMAIL]"}],"isError":false}`,
	} {
		c := messages.NewCall(messages.Tool, "t1", []byte(`{}`))
		c, _ = through(t, c, []byte(in), s)
		require.Equal(t, want, string(c.Reply()), in)
	}
	blocked, err := stageNamed(t, "tool-pii", stages.Deps{},
		func(c any) { c.(*stages.ToolPIIConfig).Rules = rule("email", "BLOCK") })
	require.NoError(t, err)
	c, _ := through(t, messages.NewCall(messages.Tool, "t1", []byte(`{}`)), []byte(`joe@example.com`), blocked)
	require.Equal(t, messages.Blocked, c.Fault.Code)
	require.False(t, c.HasReply())

	// What a failed tool says: a value goes, the fault stays, because the tool may have run.
	says := func(s pipeline.Stage) string {
		target := pipeline.TargetFunc(func(context.Context, *messages.Call, pipeline.Emit) error {
			f := messages.NewFault(messages.OutcomeUnknown, "sent to joe@example.com, perhaps")
			f.Headers = map[string]string{tool.HeaderMCPError: `{"code":1,"message":"joe@example.com"}`}
			return f
		})
		c := messages.NewCall(messages.Tool, "t1", []byte(`{}`))
		_, err := pipeline.Chain([]pipeline.Stage{s}, target).Call(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, messages.OutcomeUnknown, c.Fault.Code)
		require.NotContains(t, c.Fault.Message+c.Fault.Headers[tool.HeaderMCPError], "joe@")
		return c.Fault.Message
	}
	require.Equal(t, "sent to [REDACTED_EMAIL], perhaps", says(s))
	require.Contains(t, says(blocked), "is not shown")
}
