package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
)

// TestUnknownStore: a misspelled name must not count budgets among cached replies.
func TestUnknownStore(t *testing.T) {
	t.Parallel()
	cache := &pipeline.Memory{}
	s := storeOf(map[string]pipeline.Store{"cache": cache})
	require.Same(t, cache, s("cache"))
	_, err := s("limit").Put(t.Context(), "k", []byte("v"), 0, pipeline.Always())
	require.ErrorContains(t, err, `there is no store "limit"`)
	_, err = s("limit").Get(t.Context(), "k")
	require.Error(t, err)
	require.NotErrorIs(t, err, pipeline.ErrNotFound, "it is not an empty store")
	_, err = cache.Get(t.Context(), "k")
	require.ErrorIs(t, err, pipeline.ErrNotFound)
}
