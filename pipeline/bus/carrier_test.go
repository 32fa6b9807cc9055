package bus_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// The suite of the stages in process holds where one process has them all, asked over NATS or run where the call is.
func TestRunnerOnOneNode(t *testing.T) {
	t.Parallel()
	for name, fused := range map[string]bool{"spread": false, "fused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
				w := newWorld(t, bus.Config{Fusion: fused})
				return caller{w.node(bus.Options{Entry: true, Manager: manager(t, f.Stages...), Targets: roles(f.Target)})}
			})
		})
	}
}

// It holds with a node for each part of the installation.
func TestRunnerWithANodeForEachPart(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		w := newWorld(t, bus.Config{})
		for _, s := range f.Stages {
			w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: only(s.Name)})
		}
		w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Targets: roles(f.Target)})
		return caller{w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Entry: true})}
	})
}

func TestABoundCallPassesItsStagesAndTarget(t *testing.T) {
	t.Parallel()
	for name, fused := range map[string]bool{"spread": false, "fused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{Fusion: fused})
			m := manager(t, through("a", 10), through("b", 20))
			n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: m})
			c := wait(t, accept(t, n, chatRequest()))
			require.Nil(t, c.Fault)
			require.Equal(t, []string{"a.beforeModel", "b.beforeModel", "model", "b.afterModel", "a.afterModel"}, c.Slip.Path)
			require.JSONEq(t, `{"echo":`+chatBody+`}`, string(c.Reply()))
			for _, s := range m.Stats() {
				require.EqualValues(t, 1, s.Invocations, s.Stage)
			}
		})
	}
}
