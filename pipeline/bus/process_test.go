package bus_test

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// The suite of the stages in process holds with entry, each stage, target and nats-server as processes of the operating
// system.
func TestRunnerWithAProcessForEachPart(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts about a hundred processes")
	}
	t.Parallel()
	pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		srv := launchServer(t)
		nc := dial(t, srv.url)
		spec := partSpec{URL: srv.url, Fixture: f.Name}
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		require.NoError(t, bus.Provision(t.Context(), js, spec.config()))
		var started sync.WaitGroup
		for name, p := range partsOf(spec, f) {
			p.Name = name
			started.Go(func() { launchPart(t, p) })
		}
		started.Wait()
		return remote{nc}
	})
}

// partsOf lists the processes of an installation: entry, target, and one for each stage.
func partsOf(spec partSpec, f pipelinetest.Fixture) map[string]partSpec {
	entry, target := spec, spec
	entry.Entry, target.Target = true, true
	out := map[string]partSpec{"entry": entry, "target": target}
	for _, s := range f.Stages {
		p := spec
		p.Stage = s.Name
		out[s.Name] = p
	}
	return out
}
