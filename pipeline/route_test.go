package pipeline_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func TestCheckRoute(t *testing.T) {
	t.Parallel()
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	stage := func(name string, order int, edit func(*pipeline.Stage)) pipeline.Stage {
		s := pipeline.Stage{Name: name, Kind: messages.Tool, Order: order, Before: pass, After: pass}
		if edit != nil {
			edit(&s)
		}
		return s
	}
	role := func(r pipeline.Role, writes ...string) func(*pipeline.Stage) {
		return func(s *pipeline.Stage) { // with a filter: what a stage without one means has a row of its own
			s.Role, s.Writes, s.Filter = r, writes, func(*messages.Call) (pipeline.ChunkFilter, error) {
				return nil, nil
			}
		}
	}
	for name, tc := range map[string]struct {
		rule, level string
		bad, good   []pipeline.Stage
	}{
		"cache outer to PII input": {"cache-outer-to-pii", pipeline.LevelError,
			[]pipeline.Stage{stage("redact", 40, role(pipeline.RoleRedact, "request.messages")),
				stage("store", 30, role(pipeline.RoleCache, "reply"))},
			[]pipeline.Stage{stage("redact", 30, role(pipeline.RoleRedact, "request.messages")),
				stage("store", 40, role(pipeline.RoleCache, "reply"))}},
		"cache outer to PII output is as it should be": {"", "",
			[]pipeline.Stage{stage("store", 20, role(pipeline.RoleCache, "reply")),
				stage("redact", 48, role(pipeline.RoleRedact, "reply"))}, nil},
		"eviction not inner to cache": {"eviction-not-inner-to-cache", pipeline.LevelError,
			[]pipeline.Stage{stage("evict", 20, role(pipeline.RoleEvict, "reply")),
				stage("store", 20, role(pipeline.RoleCache, "reply"))},
			[]pipeline.Stage{stage("store", 20, role(pipeline.RoleCache, "reply")),
				stage("evict", 20, role(pipeline.RoleEvict, "reply"))}},
		"approval outer to arguments": {"approval-outer-to-arguments", pipeline.LevelError,
			[]pipeline.Stage{stage("ask", 12, role(pipeline.RoleApprove)),
				stage("read", 14, role(pipeline.RoleArguments, "request"))},
			[]pipeline.Stage{stage("ask", 16, role(pipeline.RoleApprove)),
				stage("read", 14, role(pipeline.RoleArguments, "request"))}},
		"a retry outside the fallback is a warning (FB-15)": {"retry-outer-to-fallback", pipeline.LevelWarning,
			[]pipeline.Stage{stage("again", 12, role(pipeline.RoleRetry)),
				stage("standby", 14, role(pipeline.RoleFallback))},
			[]pipeline.Stage{stage("again", 14, role(pipeline.RoleRetry)),
				stage("standby", 12, role(pipeline.RoleFallback))}},
		"mandatory inner to optional": {"mandatory-inner-to-optional", pipeline.LevelError,
			[]pipeline.Stage{stage("may-answer", 3, nil),
				stage("must", 4, func(s *pipeline.Stage) { s.Tier = pipeline.Mandatory })},
			[]pipeline.Stage{stage("may-not", 3, func(s *pipeline.Stage) { s.Before = nil }),
				stage("must", 4, func(s *pipeline.Stage) { s.Tier = pipeline.Mandatory })}},
		"two writers of one field at one order": {"two-writers", pipeline.LevelError,
			[]pipeline.Stage{stage("one", 30, role("", "request.messages")), stage("two", 30, role("", "request"))},
			[]pipeline.Stage{stage("one", 30, role("", "request.messages")),
				stage("two", 30, role("", "request.system"))}},
		"two writers that never meet": {"", "",
			[]pipeline.Stage{
				stage("one", 30, func(s *pipeline.Stage) {
					s.Writes, s.ApplyTo = []string{"request"},
						[]string{pipeline.ApplyAgent}
				}),
				stage("two", 30, func(s *pipeline.Stage) {
					s.Writes, s.ApplyTo = []string{"request"},
						[]string{pipeline.ApplyBare}
				}),
			}, nil},
		"a reply writer without a chunk filter": {"no-chunk-filter", pipeline.LevelWarning,
			[]pipeline.Stage{stage("edit", 30, func(s *pipeline.Stage) { s.Kind, s.Rewrites = messages.Model, true })},
			[]pipeline.Stage{stage("edit", 30, func(s *pipeline.Stage) {
				s.Kind, s.Rewrites = messages.Model, true
				s.Filter = func(*messages.Call) (pipeline.ChunkFilter, error) { return nil, nil }
			})}},
		"a writer of tool results without a chunk filter": {"no-chunk-filter", pipeline.LevelWarning,
			[]pipeline.Stage{stage("edit", 30, func(s *pipeline.Stage) { s.Writes = []string{"reply"} })},
			[]pipeline.Stage{stage("store", 30, func(s *pipeline.Stage) {
				s.Role, s.Writes = pipeline.RoleCache,
					[]string{"reply"}
			})}},
		"an editor of every caller's requests": {"edits-every-request", pipeline.LevelWarning,
			[]pipeline.Stage{stage("edit", 30, func(s *pipeline.Stage) {
				s.Kind, s.Writes = messages.Model, []string{"request.messages"}
			})},
			[]pipeline.Stage{stage("edit", 30, func(s *pipeline.Stage) {
				s.Kind, s.Writes, s.ApplyTo = messages.Model, []string{"request.messages"}, []string{pipeline.ApplyAgent}
			})}},
		"one tool may not come from two stages (S1-IF-3)": {"one-tool-twice", pipeline.LevelError,
			[]pipeline.Stage{
				stage("a", 30, func(s *pipeline.Stage) { s.Tools = []pipeline.Tool{{Name: "x"}} }),
				stage("b", 31, func(s *pipeline.Stage) { s.Tools = []pipeline.Tool{{Name: "x"}} }),
			}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := pipeline.CheckRoute(tc.bad)
			if tc.rule == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, tc.rule, found[0].Rule)
			require.Equal(t, tc.level, found[0].Level)
			for _, s := range tc.bad {
				require.Contains(t, found[0].Text, s.Name, "a finding names the stages")
				require.Contains(t, found[0].Stages, s.Name)
			}
			require.Empty(t, pipeline.CheckRoute(tc.good))
		})
	}
}

func TestCheckOfStagesThatAreOff(t *testing.T) {
	t.Parallel()
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	m := &pipeline.Manager{}
	require.NoError(t, m.Register(pipeline.Stage{Name: "read", Kind: messages.Tool, Order: 14, Before: pass,
		Role: pipeline.RoleArguments}, true))
	require.NoError(t, m.Register(pipeline.Stage{Name: "ask", Kind: messages.Tool, Order: 12, Before: pass,
		Role: pipeline.RoleApprove}, false))
	found := m.Check()
	require.Len(t, found, 1)
	require.Equal(t, pipeline.LevelWarning, found[0].Level)
	require.Contains(t, found[0].Text, "if it is switched on")
	m.Switch(messages.Tool, "ask", true)
	require.Equal(t, pipeline.LevelError, m.Check()[0].Level)

	v, err := pipeline.LocalControl{Manager: m}.Diagnostics(t.Context())
	require.NoError(t, err)
	require.Equal(t, m.Check(), v.(pipeline.Diagnostics).Route)
}
