package responses_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// sized is a store that knows how full it is.
type sized struct {
	*pipeline.Memory
	most int64
}

func (s sized) Each(ctx context.Context, f func(key string, bytes int64)) error {
	keys, err := s.Keys(ctx, "")
	if err != nil {
		return err
	}
	all := map[string]pipeline.StoreEntry{}
	for _, k := range keys {
		if all[k], err = s.Get(ctx, k); err != nil {
			return err
		}
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(all[a].Revision, all[b].Revision) })
	for _, k := range keys {
		f(k, int64(len(all[k].Value)))
	}
	return nil
}

func (s sized) Size(ctx context.Context) (used, most int64, err error) {
	err = s.Each(ctx, func(_ string, n int64) { used += n })
	return used, s.most, err
}

// Who has most gives way, by its oldest; the others keep all that they have.
func TestATenantThatFillsTheRoomMakesItItself(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tenant := func(name string) responses.Owner { return responses.Owner{Tenant: name, Key: "k"} }
	turn := func(name string, i int) string {
		return s.turn(tenant(name), `{"model":"m1","input":"x"}`, name+strings.Repeat("y", i))
	}
	small := []string{turn("small", 1)}
	var large, middle []string
	for i := range 40 {
		large = append(large, turn("large", i+1))
	}
	for i := range 10 {
		middle = append(middle, turn("middle", i+1))
	}
	small = append(small, turn("small", 2))
	open := s.begun(tenant("large"), "")
	store := sized{Memory: s.store}
	k := responses.New(store, s.calls)
	n, err := k.Trim(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "a store without a bound")
	used, _, err := store.Size(t.Context())
	require.NoError(t, err)
	store.most = used * 8 / 5
	k = responses.New(store, s.calls)
	n, err = k.Trim(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "there is room")

	store.most = used // all of it is full
	k = responses.New(store, s.calls)
	n, err = k.Trim(t.Context())
	require.NoError(t, err)
	require.Positive(t, n)
	used, most, err := store.Size(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, used, most/8*5+2000, "a few entries more or less")
	for _, id := range append(small, middle...) {
		o := tenant("small")
		if slices.Contains(middle, id) {
			o = tenant("middle")
		}
		_, err := s.Look(t.Context(), o, id)
		require.NoError(t, err)
	}
	_, err = s.Look(t.Context(), tenant("large"), large[0])
	isFault(t, err, messages.NotFound, "")
	_, err = s.Look(t.Context(), tenant("large"), large[39])
	require.NoError(t, err, "the newest stay")
	_, err = s.Look(t.Context(), tenant("large"), open.ID)
	require.NoError(t, err)

	store.most = used / 4 // then all of them
	_, err = responses.New(store, s.calls).Trim(t.Context())
	require.NoError(t, err)
	_, err = s.Look(t.Context(), tenant("middle"), middle[0])
	isFault(t, err, messages.NotFound, "")
	_, err = s.Look(t.Context(), tenant("small"), small[1])
	require.NoError(t, err)
}

// Who has written much is told to look.
func TestWhoWritesMuchLooksForRoom(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	body := noise(2 << 20)
	for n := 0; ; n++ {
		select {
		case <-s.Filling():
			require.Greater(t, n, 4, "it was not much yet")
			return
		default:
		}
		require.Less(t, n, 20, "nobody was told")
		s.turn(ann, `{"model":"m1","input":"`+body+`"}`, "y")
	}
}

// noise is a text that cannot be packed well.
func noise(n int) string {
	var b strings.Builder
	for x := uint32(1); b.Len() < n; {
		x = x*1664525 + 1013904223
		b.WriteByte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[x>>26])
	}
	return b.String()
}
