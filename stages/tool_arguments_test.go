package stages_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

type oneTool tool.Definition

func (o *oneTool) Get(_ context.Context, name string) (*tool.Definition, error) {
	if name == o.Name || name == o.Name+"@"+o.Version {
		return (*tool.Definition)(o), nil
	}
	return nil, messages.NewFault(messages.ToolNotFound, "there is no tool '%s'", name)
}

func toolStage(t *testing.T, name string, d stages.Deps) pipeline.Stage {
	t.Helper()
	for _, s := range stages.All() {
		if s.Name == name && s.Kind == messages.Tool {
			stage, on, err := s.Make(s.Config(), d)
			require.NoError(t, err)
			require.True(t, on)
			return stage
		}
	}
	t.Fatalf("no tool stage %s", name)
	return pipeline.Stage{}
}

func TestToolArguments(t *testing.T) {
	t.Parallel()
	def := &oneTool{Name: "x", Version: "1",
		InputSchema: tool.JSON(`{"required":["a"],"properties":{"a":{"type":"integer"}}}`)}
	def.Effect = tool.EffectRead
	s := toolStage(t, "tool-arguments", stages.Deps{Tools: def})
	c := messages.NewCall(messages.Tool, "default", []byte(`{"z":1,"a":"7"}`))
	c.Tool = "x"
	for range 2 { // delivered twice
		_, err := s.Before(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, `{"a":7}`, string(c.Request()), "(S2-ARG-5 S2-ARG-7)")
	}
	var changes []args.Change
	require.True(t, c.Noted(messages.NoteArgumentChanges, &changes))
	require.Len(t, changes, 2)
	c.SetRequest([]byte(`{"a":`)) // broken text travels as a JSON string
	_, err := s.Before(t.Context(), c)
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	require.Equal(t, messages.InvalidArguments, f.Code, "S2-ARG-15")
	c.Tool = "y"
	_, err = s.Before(t.Context(), c)
	require.ErrorAs(t, err, &f)
	require.Equal(t, messages.ToolNotFound, f.Code, "X-32")
}

func TestToolTimeout(t *testing.T) {
	t.Parallel()
	def := &oneTool{Name: "search_x", Version: "1"}
	s := toolStage(t, "timeout", stages.Deps{Tools: def})
	c := messages.NewCall(messages.Tool, "default", []byte(`{}`))
	c.Tool = "search_x"
	_, err := s.Before(t.Context(), c)
	require.NoError(t, err)
	var ms int64
	require.True(t, c.Noted(messages.NoteToolTimeout, &ms))
	require.EqualValues(t, 10_000, ms, "TO-2")
	c.Deadline = time.Now().Add(time.Second)
	_, err = s.Before(t.Context(), c)
	require.NoError(t, err)
	require.True(t, c.Noted(messages.NoteToolTimeout, &ms))
	require.LessOrEqual(t, ms, int64(1000), "never more than is left of the call (X-28)")
}
