package stream

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatFollowsASeenTextIsKnownWithoutTheText(t *testing.T) {
	t.Parallel()
	var none *seenText
	more, ok := none.rest("abc")
	require.True(t, ok)
	require.Equal(t, "abc", more)
	require.True(t, none.empty())
	seen := &seenText{}
	for _, piece := range []string{"", "Zwie", "bel\x00", "n"} { // in whatever pieces it came
		seen.add(piece)
	}
	require.False(t, seen.empty())
	for full, want := range map[string]string{"Zwiebel\x00n": "", "Zwiebel\x00n und mehr": " und mehr"} {
		more, ok = seen.rest(full)
		require.True(t, ok, full)
		require.Equal(t, want, more)
	}
	for _, full := range []string{"", "Zwiebel", "Zwiebel\x00m", "zwiebel\x00n und mehr"} {
		_, ok = seen.rest(full)
		require.False(t, ok, full)
	}
}
