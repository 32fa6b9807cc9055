package stages

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuidance: the advice of S3-OPS-1 stands in the documents, with the keys that exist.
func TestGuidance(t *testing.T) {
	t.Parallel()
	t.Run("operators see the counts that they need to tune clearing (S3-OPS-1)", func(t *testing.T) {
		t.Parallel()
		raw, err := os.ReadFile("../../../docs/stages.md")
		require.NoError(t, err)
		_, tuning, found := strings.Cut(string(raw), "## Tuning")
		require.True(t, found)
		for _, key := range []string{"keep", "exclude-tools", "clear-at-least", "window-rounds", "before and after"} {
			require.Contains(t, tuning, key)
		}
	})
}
