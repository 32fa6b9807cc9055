package events_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/events"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("añ", 400)
	for _, e := range []string{
		`{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"` + long + `"}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + long + `"}}`,
		`{"choices":[{"index":0,"delta":{"content":"` + long + `"}}]}`,
	} {
		pieces := events.Split([]byte(e), 400)
		require.Greater(t, len(pieces), 1)
		text := ""
		for _, p := range pieces {
			require.LessOrEqual(t, len(p), 400)
			if _, s, ok := events.Delta(p); ok {
				text += s
			}
		}
		if events.Name([]byte(e)) != "" {
			require.Equal(t, long, text)
		}
		require.Len(t, events.Split([]byte(e), len(e)), 1)
	}
	whole := `{"type":"response.output_item.done","item":{"id":"` + long + `"}}`
	require.Equal(t, whole, string(events.Split([]byte(whole), 400)[0]), "what cannot be cut stays whole")
}

func TestWhatAnEventIs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		event            string
		says, ends, last bool
	}{
		{`{"type":"response.created","response":{}}`, false, false, false},
		{`{"type":"response.output_item.added","item":{"type":"message"}}`, false, false, false},
		{`{"type":"response.output_item.added","item":{"type":"function_call"}}`, true, false, false},
		{`{"type":"response.reasoning_summary_text.delta","delta":"x"}`, true, false, false},
		{`{"type":"response.completed","response":{}}`, false, true, true},
		{`{"type":"response.failed","response":{}}`, false, true, false},
		{`{"type":"message_start","message":{}}`, false, false, false},
		{`{"type":"ping"}`, false, false, false},
		{`{"type":"content_block_start","content_block":{"type":"text","text":""}}`, false, false, false},
		{`{"type":"content_block_start","content_block":{"type":"tool_use"}}`, true, false, false},
		{`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}`, true, false, false},
		{`{"type":"message_delta","delta":{}}`, false, true, false},
		{`{"type":"message_stop"}`, false, true, true},
		{`{"choices":[{"delta":{"role":"assistant"}}]}`, false, false, false},
		{`{"choices":[{"delta":{"content":"x"}}]}`, true, false, false},
	} {
		e := []byte(row.event)
		require.Equal(t, row.says, events.Says(e), row.event)
		require.Equal(t, row.ends, events.Ends(e), row.event)
		require.Equal(t, row.last, events.Last(e), row.event)
	}
}

// An edit touches the texts and nothing else; log probabilities go with the text that they spell.
func TestTexts(t *testing.T) {
	t.Parallel()
	upper := func(at events.Key, _ bool, s string) string {
		if at.Kind == events.Signed || at.Kind == events.Signature {
			return s
		}
		return strings.ToUpper(s)
	}
	for _, row := range [][2]string{
		{`{"type":"response.output_text.delta","delta":"a","logprobs":[{"token":"a"}],"obfuscation":"x"}`,
			`{"type":"response.output_text.delta","delta":"A","logprobs":[],"obfuscation":"x"}`},
		{`{"type":"response.output_item.done","item":{"type":"message","content":[{"type":"output_text","text":"a",` +
			`"annotations":[]},{"type":"refusal","refusal":"b"}]}}`,
			`{"type":"response.output_item.done","item":{"type":"message","content":[{"type":"output_text","text":"A",` +
				`"annotations":[]},{"type":"refusal","refusal":"B"}]}}`},
		{`{"type":"response.output_item.done","item":{"type":"reasoning","summary":[{"type":"summary_text","text":"a"}],` +
			`"encrypted_content":"e"}}`, `{"type":"response.output_item.done","item":{"type":"reasoning","summary":[{` +
			`"type":"summary_text","text":"A"}],"encrypted_content":"e"}}`},
		{`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\""}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"A\""}}`},
		{`{"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"a"}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"a"}}`},
		{`{"type":"response.of_tomorrow","text":"a"}`, `{"type":"response.of_tomorrow","text":"a"}`},
	} {
		require.Equal(t, row[1], string(events.Texts([]byte(row[0]), upper)))
	}
}
