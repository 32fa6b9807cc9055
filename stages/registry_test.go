package stages_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// TestDefaultRoute holds the registry to its own checker: every stage on, in the default orders, gives no error, and
// every stage says what it reads.
func TestDefaultRoute(t *testing.T) {
	t.Parallel()
	d := harnessDeps()
	parser := &args.Parser{}
	d.Tools, d.Parser = tool.NewRegistry(&pipeline.Memory{}, parser, nil), parser
	m := &pipeline.Manager{}
	for _, spec := range stages.All() {
		cfg := spec.Config()
		if c, ok := cfg.(*stages.PIIConfig); ok {
			c.Rules = []stages.PIIRule{{Type: "email", Strategy: "REDACT"}}
		}
		s, _, err := spec.Make(cfg, d)
		require.NoError(t, err, spec.Name)
		require.NotEmpty(t, append(s.Reads, s.Writes...), "stage %s of kind %s declares nothing that it reads or writes",
			s.Name, s.Kind)
		require.NoError(t, m.Register(s, true))
	}
	for _, f := range m.Check() {
		require.NotEqual(t, pipeline.LevelError, f.Level, f.String())
	}
}

// TestKeysOfEveryStage: the place of a stage, its callers, and what happens when nobody serves it.
func TestKeysOfEveryStage(t *testing.T) {
	t.Parallel()
	s, on, err := harnessMake(messages.Model, "sub-agent",
		"{enabled: false, order: 61, on-absent: skip, apply-to: [bare]}", harnessDeps())
	require.NoError(t, err)
	require.False(t, on)
	require.Equal(t, []any{61, true, []string{"bare"}}, []any{s.Order, s.SkipAbsent, s.ApplyTo})
	for name, bad := range map[string]string{
		"sub-agent":  "on-absent: never",
		"audit":      "on-absent: skip",
		"call-limit": "apply-to: [nobody]",
	} {
		_, _, err := harnessMake(messages.Model, name, bad, harnessDeps())
		key, _, _ := strings.Cut(bad, ":")
		require.ErrorContains(t, err, "agent.interceptor."+name+"."+key+": ")
	}
}
