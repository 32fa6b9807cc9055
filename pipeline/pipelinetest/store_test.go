package pipelinetest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

func TestStoreOnMemory(t *testing.T) {
	t.Parallel()
	pipelinetest.Store(t, func(*testing.T) pipeline.Store { return &pipeline.Memory{} })
}

// An entry is there until its ttl ends, and gone at that instant, by the clock of the process (CA-6).
func TestMemoryTTLToTheInstant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m pipeline.Memory
		_, err := m.Put(t.Context(), "k", []byte("v"), time.Minute, pipeline.Always())
		require.NoError(t, err)
		<-time.After(time.Minute - 1)
		_, err = m.Get(t.Context(), "k")
		require.NoError(t, err)
		<-time.After(1)
		_, err = m.Get(t.Context(), "k")
		require.ErrorIs(t, err, pipeline.ErrNotFound)
	})
}

func TestStageRunsEveryPhaseTwice(t *testing.T) {
	t.Parallel()
	shape := pipelinetest.Shape{Name: "alpha", Order: 10, Before: true, After: true, Keep: true}
	target := &pipelinetest.Target{Outcomes: []any{errors.New("first"), `{"text":"second"}`}}
	body := `{"script":{"A.a":["again"]}}`
	c := pipelinetest.Stage(t, shape.Stage(messages.Model), target, pipelinetest.NewCall(messages.Model, []byte(body)))
	require.Nil(t, c.Fault)
	require.JSONEq(t, `{"text":"second"}`, string(c.Reply()))
	require.Equal(t, []string{"A.b", "A.a", "A.a"}, pipelinetest.Trace(c))
	require.Equal(t, 2, target.Calls())
	require.Equal(t, []string{body, body}, target.Requests())
}
