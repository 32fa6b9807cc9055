package stages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// TestDefaultRoute holds the registry to its own checker: every stage on, in the default orders, gives no error, and
// every stage says what it reads (contracts 24).
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
