package chat_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
)

// Who answered and what it cost is read by the names of each API; nothing is guessed.
func TestAnsweredReadsEachAPI(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply, model string
		usage        chat.Usage
	}{
		"chat": {`{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":3,` +
			`"prompt_tokens_details":{"cached_tokens":5},` +
			`"completion_tokens_details":{"reasoning_tokens":2}}}`,
			"m", chat.Usage{Input: 7, Output: 3, CacheRead: 5, Reasoning: 2}},
		"responses": {`{"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":5},` +
			`"output_tokens_details":{"reasoning_tokens":2}},"model":"m"}`,
			"m", chat.Usage{Input: 7, Output: 3, CacheRead: 5, Reasoning: 2}},
		"messages": {`{"model":"m","usage":{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":5}}`, "m",
			chat.Usage{Input: 7, Output: 3, CacheRead: 5}},
		"nothing said": {`{"choices":[]}`, "", chat.Usage{}},
		"nonsense":     {`{"model":1,"usage":{"prompt_tokens":-1,"completion_tokens":"x"}}`, "", chat.Usage{}},
		"no JSON":      {`hello`, "", chat.Usage{}},
		"no reply":     {``, "", chat.Usage{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model, usage := chat.Answered([]byte(c.reply))
			require.Equal(t, c.model, model)
			require.Equal(t, c.usage, usage)
		})
	}
}
