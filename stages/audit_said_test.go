package stages_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func TestAuditHoldsWhatStagesChangedAndTheCallersLabel(t *testing.T) {
	t.Parallel()
	var records []stages.AuditRecord
	d := stages.Deps{Store: memories(), Publish: func(_ context.Context, _ string, r any) error {
		records = append(records, r.(stages.AuditRecord))
		return nil
	}}
	chain := []pipeline.Stage{
		mustShape[stages.AuditConfig](t, "audit", d, nil), mustShape[editing](t, "context-editing", d, func(c *editing) {
			c.Strategy, c.MaxTokens = stages.Strategies{stages.Trim}, 100
		}), mustShape[stages.TodoConfig](t, "todo-list", d, nil),
	}
	c := call(request(talk(20, 50)...))
	c.Note(messages.NoteSessionLabel, "ours 7")
	model := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply(chat.TextReply("x", "m", "done [TODO_ADD: title=a]", 1))
		return nil
	})
	c, err := pipeline.Chain(chain, model).Call(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "context-editing;cut=8, todo-list;added;taken=1", c.Edits())
	end := records[len(records)-1]
	require.Equal(t, c.Edits(), end.Edited)
	require.Equal(t, "ours 7", end.SessionLabel)
	require.Equal(t, "s1", end.Session)
}

func TestAStageThatRunsAgainSaysItAgain(t *testing.T) {
	t.Parallel()
	c := call(request(msg("user", "hi")))
	c.Edited("a", "cut=1")
	c.Edited("b", "left=2", "x")
	c.Edited("a", "cut=3")
	require.Equal(t, "a;cut=3, b;left=2;x", c.Edits())
	c.Edited("a")
	require.Equal(t, "b;left=2;x", c.Edits())
	c.Edited("b")
	require.Empty(t, c.Edits())
	require.NotContains(t, c.Notes, messages.NoteEdited)
}
