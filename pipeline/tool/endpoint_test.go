package tool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

func TestSubjectsOfTools(t *testing.T) {
	t.Parallel()
	parser := &args.Parser{}
	check := func(subject string, source tool.Source) error {
		d := tool.Definition{Name: "a", Executor: tool.Executor{Kind: tool.ExecNATS, Name: subject}, Source: source}
		return d.Validate(parser)
	}
	for _, s := range []string{"", "a", "a.b-c_d", "weather.get=2Ex"} {
		require.NoError(t, check(s, tool.Discovered), s)
	}
	for _, s := range []string{"a b", "a.*", ">", "a..b", ".a", "a.", "a\n", "\u00e9"} {
		require.Error(t, check(s, tool.Operator), s)
	}
	for _, s := range []string{"$JS.API.INFO", "$SYS.x", "_INBOX.a"} {
		require.Error(t, check(s, tool.API), s)
		require.Error(t, check(s, tool.Discovered), s)
		require.NoError(t, check(s, tool.Operator), s)
	}
}
