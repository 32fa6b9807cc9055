package tool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// TestNoGuessesForDestructiveTools: the wide rules do not hold for a tool that says that it destroys, unless it is
// named with them; the table of every tool does.
func TestNoGuessesForDestructiveTools(t *testing.T) {
	t.Parallel()
	var p args.Parser
	yes, no := true, false
	for name, c := range map[string]struct {
		hints *tool.Annotations
		own   string
		wide  bool
	}{
		"says nothing":          {nil, "", true},
		"destroys":              {&tool.Annotations{Destructive: &yes}, "", false},
		"destroys, but allowed": {&tool.Annotations{Destructive: &yes}, args.Extended, true},
		"adds only":             {&tool.Annotations{Destructive: &no}, "", true},
		"reads":                 {&tool.Annotations{ReadOnly: &yes, Destructive: &yes}, "", true},
	} {
		def := &tool.Definition{Name: "t",
			InputSchema: tool.JSON(`{"properties":{"all":{"type":"boolean"},"ids":{"type":"array"}}}`)}
		def.Annotations, def.Coercion = c.hints, c.own
		_, f := def.ParseArguments(&p, []byte(`{"ids":"[1,2]"}`), args.Options{Coercion: args.Extended}, tool.Effective{})
		require.Equal(t, c.wide, f == nil, name)
		_, f = def.ParseArguments(&p, []byte(`{"all":"TRUE"}`), args.Options{Coercion: args.Extended}, tool.Effective{})
		require.Nil(t, f, name)
	}
}
