//go:build tokenizer

package stages_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/stages"
)

func TestTokenizerReadsAVocabulary(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i, token := range []string{"a", "b", "c", " ", "ab", " ab", "abc"} {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), i)
	}
	path := filepath.Join(t.TempDir(), "vocabulary.tiktoken")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	s := mustShape(t, "context-editing", stages.Deps{}, func(c *editing) {
		c.TokenCounter, c.TokenizerVocabulary = "tokenizer", path
		c.Strategy, c.MaxTokens, c.TrimKeepFirst, c.TrimKeepLast = stages.Strategies{stages.Trim}, 10, 0, 1
	})
	// "abc  ab acb": abc | " " | " ab" | " ", a, c, b = 7, and 4 for each message.
	c := call(request(msg("user", "abc  ab acb"), msg("user", "")))
	_, err := s.Before(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, 15, edits(t, c)[0].Before)
	require.Len(t, chat.Messages(c.Request()), 1)
	for name, text := range map[string]string{"line 1": "x", "no token": "\n"} {
		bad := filepath.Join(t.TempDir(), "bad")
		require.NoError(t, os.WriteFile(bad, []byte(text), 0o600))
		_, err := shaping(t, "context-editing", stages.Deps{},
			func(c *editing) { c.TokenCounter, c.TokenizerVocabulary = "tokenizer", bad })
		require.ErrorContains(t, err, name)
	}
	_, err = shaping(t, "context-editing", stages.Deps{}, func(c *editing) { c.TokenCounter = "tokenizer" })
	require.ErrorContains(t, err, "tokenizer-vocabulary: empty")
}
