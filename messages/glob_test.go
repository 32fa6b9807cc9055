package messages_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
)

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          int
	}{
		{"*", "a/b", 0}, {"*", "", 0}, {"", "", messages.ExactGlob}, {"", "a", -1},
		{"gpt-*", "gpt-4o", 4}, {"gpt-*", "GPT-4o", -1}, {"gpt-*", "gpt", -1},
		{"org/*", "org/x/y", 4}, {"*/y", "org/x/y", 2}, {"a*c*e", "abcde", 3}, {"a*c*e", "abde", -1},
		{"a*a", "a", -1}, {"a**b", "ab", 2}, {"*a*", "a", 1}, {"*ab", "aab", 2}, {"a?", "ab", -1},
		{"m1", "m10", -1}, {"m1", "m1", messages.ExactGlob}, {"[a]", "a", -1}, {"[a]", "[a]", messages.ExactGlob},
	} {
		require.Equal(t, tt.want, messages.GlobScore(tt.pattern, tt.name), "%q %q", tt.pattern, tt.name)
		require.Equal(t, tt.want >= 0, messages.Glob(tt.pattern, tt.name), "%q %q", tt.pattern, tt.name)
	}
}

// Few letters, so that patterns often fit.
var globText = rapid.StringMatching(`[ab/.+\n]{0,8}`)

// TestGlobIsAnyText compares with a regular expression in which each star is any text.
func TestGlobIsAnyText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern, name := rapid.StringMatching(`[ab/.+*]{0,8}`).Draw(t, "pattern"), globText.Draw(t, "name")
		expr := regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `\z`)
		require.Equal(t, expr.MatchString(name), messages.Glob(pattern, name))
		require.NoError(t, messages.CheckGlob(pattern+"x"))
	})
}

// TestGlobScoreGrowsWithTheText: a star in place of some text of a pattern never makes it a better match.
func TestGlobScoreGrowsWithTheText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := globText.Draw(t, "name")
		pattern, last := name, messages.ExactGlob
		for range 3 {
			require.Equal(t, last, messages.GlobScore(pattern, name))
			from := rapid.IntRange(0, len(pattern)).Draw(t, "from")
			to := rapid.IntRange(from, len(pattern)).Draw(t, "to")
			wider := pattern[:from] + "*" + pattern[to:]
			score := messages.GlobScore(wider, name)
			require.GreaterOrEqual(t, score, 0, "%q still fits", wider)
			require.LessOrEqual(t, score, last)
			require.Less(t, score, messages.ExactGlob)
			pattern, last = wider, score
		}
	})
}

func TestCheckGlob(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "gpt-[34]*", "m?", `a\*`, "{a,b}", "x]"} {
		require.Error(t, messages.CheckGlob(bad), bad)
	}
	require.NoError(t, messages.CheckGlob("ft:gpt-4o:org::id/*+~@"))
	require.ErrorContains(t, messages.CheckGlob("m?"), `'?' is not known; only * stands for other text`)
}
