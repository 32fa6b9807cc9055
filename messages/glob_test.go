package messages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "a/b", true}, {"gpt-*", "gpt-4o", true}, {"gpt-*", "GPT-4o", false}, {"a*c*e", "abcde", true}, {"a*c*e", "abde", false},
		{"a*a", "a", false}, {"", "", true}, {"", "a", false}, {"m1", "m10", false}, {"org/*", "org/x/y", true}, {"a**b", "ab", true},
	} {
		require.Equal(t, tt.want, messages.Globs(tt.pattern, tt.name), "%s %s", tt.pattern, tt.name)
	}
}
