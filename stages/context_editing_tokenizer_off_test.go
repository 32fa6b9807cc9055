//go:build !tokenizer

package stages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/stages"
)

func TestTokenizerNeedsItsBuildTag(t *testing.T) {
	t.Parallel()
	_, err := shaping(t, "context-editing", stages.Deps{}, func(c *editing) { c.TokenCounter = "tokenizer" })
	require.ErrorContains(t, err, "-tags tokenizer")
}
