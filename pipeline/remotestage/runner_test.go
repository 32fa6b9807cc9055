package remotestage_test

import (
	"context"
	"testing"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

type local struct{ pipeline.Local }

func (l local) CallStream(ctx context.Context, c *messages.Call, onChunk func([]byte)) (*messages.Call, error) {
	l.Emit = func(chunk []byte) error { onChunk(chunk); return nil }
	return l.Local.Call(ctx, c)
}

// The cases of stages hold for stages whose work a program elsewhere does, asked over the wire of the documentation.
func TestRunnerWithRemoteStages(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(_ *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		return local{pipeline.Local{Stages: pipelinetest.Remotely(f.Stages, pipelinetest.Programs(f.Stages)),
			Target: f.Target}}
	})
}

// wired has the wire form of the bus between every two steps besides.
type wired struct{ f pipelinetest.Fixture }

func (w wired) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	return pipelinetest.CallOverWire(ctx, pipelinetest.Remotely(w.f.Stages, pipelinetest.Programs(w.f.Stages)),
		w.f.Target, c)
}

func TestRunnerWithRemoteStagesOverTheWireForm(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(_ *testing.T, f pipelinetest.Fixture) pipeline.Caller { return wired{f} })
}
