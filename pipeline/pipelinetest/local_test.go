package pipelinetest_test

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

func TestRunnerOnLocal(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(_ *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		return local{pipeline.Local{Stages: f.Stages, Target: f.Target}}
	})
}

// wired is Local with the wire form between every two steps: what the bus does to a call, without a bus.
type wired struct{ f pipelinetest.Fixture }

func (w wired) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	return pipelinetest.CallOverWire(ctx, w.f.Stages, w.f.Target, c)
}

func TestRunnerOverTheWireForm(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(_ *testing.T, f pipelinetest.Fixture) pipeline.Caller { return wired{f} })
}
