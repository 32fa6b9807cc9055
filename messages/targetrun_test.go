package messages_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
)

func TestWhatIsSaidOfARunIsNotedAsEncodingJSONReadsIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run := rapid.Make[messages.TargetRun]().Draw(t, "run")
		c := messages.NewCall(messages.Model, "t", []byte(`{}`))
		c.Note(messages.NoteTargetRun, run)
		var read messages.TargetRun
		require.NoError(t, json.Unmarshal(c.Notes[messages.NoteTargetRun], &read))
		require.Equal(t, read, c.TakeTargetRun())
	})
}
