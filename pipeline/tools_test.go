package pipeline_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func TestStageTools(t *testing.T) {
	t.Parallel()
	do := func(context.Context, *messages.Call, json.RawMessage) ([]byte, error) { return []byte(`"done"`), nil }
	w := pipeline.Stage{Name: "w", Tools: []pipeline.Tool{
		{Name: "write_todos", Description: "d", Parameters: json.RawMessage(`{"type":"object"}`), Do: do},
		{Name: "own", Do: do},
	}}
	v := pipeline.Stage{Name: "v", Tools: []pipeline.Tool{{Name: "write_todos", Do: do}}}
	list := []pipeline.Stage{w, v}
	body := `{"model":"m","tools":[{"type":"function","function":{"name":"own","x":1.0}}]}`
	c := messages.NewCall(messages.Model, "t", []byte(body))

	clashes, err := pipeline.AddTools(c, list, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"own", "write_todos"}, clashes, "the request's own wins, then the outer stage's "+
		"(S1-IF-3)")
	require.Equal(t, `{"model":"m","tools":[{"type":"function","function":{"name":"own","x":1.0}},`+
		`{"type":"function","function":{"name":"write_todos","description":"d","parameters":{"type":"object"}}}]}`,
		string(c.Request()))
	once := string(c.Request())
	_, err = pipeline.AddTools(c, list, nil)
	require.NoError(t, err)
	require.Equal(t, once, string(c.Request()), "a second run changes nothing")

	t.Run("a tool that cannot be executed is refused (CH-22)", func(t *testing.T) {
		t.Parallel()
		bad := pipeline.Stage{Name: "w", Tools: []pipeline.Tool{{Name: "ghost"}}}
		c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m"}`))
		_, err := pipeline.AddTools(c, []pipeline.Stage{bad}, func(string) bool { return false })
		var f *messages.Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, messages.Misconfigured, f.Code)
		require.Contains(t, f.Message, "stage w")
		require.Contains(t, f.Message, `"ghost"`)
		require.Equal(t, `{"model":"m"}`, string(c.Request()))
		_, err = pipeline.AddTools(c, []pipeline.Stage{bad}, func(name string) bool { return name == "ghost" })
		require.NoError(t, err)
	})
	t.Run("so is one that a before wrote into the request (CH-22)", func(t *testing.T) {
		t.Parallel()
		before := []byte(`{"model":"m"}`)
		after := []byte(`{"model":"m","tools":[{"type":"function","function":{"name":"ghost"}}]}`)
		require.Error(t, pipeline.CheckAddedTools(pipeline.Stage{Name: "w"}, before, after, nil))
		require.NoError(t, pipeline.CheckAddedTools(pipeline.Stage{Name: "w"}, after, after, nil))
		require.NoError(t, pipeline.CheckAddedTools(pipeline.Stage{Name: "w"}, before, after, func(string) bool {
			return true
		}))
		require.NoError(t, pipeline.CheckAddedTools(pipeline.Stage{Name: "w",
			Tools: []pipeline.Tool{{Name: "ghost", Do: do}}}, before, after, nil))
	})
}
