package pipelinetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// StoreTTL is the time to live that the Store suite uses: the shortest that a NATS bucket takes.
const StoreTTL = time.Second

// Store is the suite of a Store. newStore returns an empty store each time; it must stop what it starts in t.Cleanup.
// It takes a little longer than StoreTTL of real time.
func Store(t *testing.T, newStore func(t *testing.T) pipeline.Store) {
	t.Helper()
	cases := map[string]func(t *testing.T, s pipeline.Store){
		"what is not there is ErrNotFound":                               storeMissing,
		"put, get, overwrite, delete":                                    storeBasics,
		"IfAbsent: the first writer wins":                                storeIfAbsent,
		"IfAbsent: a race has one winner":                                storeRace,
		"IfRevision: compare and set":                                    storeRevision,
		"IfRevision: a race has one winner":                              storeRevisionRace,
		"values of any bytes come back":                                  storeValues,
		"a value that was handed out is a copy":                          storeIsolated,
		"keys of every token form":                                       storeKeys,
		"Keys lists by prefix":                                           storePrefix,
		"Change: concurrent changes lose nothing":                        storeChange,
		"Change: what edit decides":                                      storeChangeEdit,
		"a context that ended is an error":                               storeContext,
		"an entry is gone at the end of its ttl, the others stay (CA-6)": storeTTL,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) { run(t, newStore(t)) })
	}
}

func storeMissing(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	_, err := s.Get(ctx, "a.b")
	require.ErrorIs(t, err, pipeline.ErrNotFound)
	require.NoError(t, s.Delete(ctx, "a.b"), "deleting a missing key is not an error")
	keys, err := s.Keys(ctx, "")
	require.NoError(t, err, "an empty store lists nothing, without an error")
	require.Empty(t, keys)
	keys, err = s.Keys(ctx, "a.")
	require.NoError(t, err)
	require.Empty(t, keys)
}

func storeBasics(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	begin := time.Now()
	r1, err := s.Put(ctx, "k", []byte("one"), 0, pipeline.Always())
	require.NoError(t, err)
	require.NotZero(t, r1)
	e, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "one", string(e.Value))
	require.Equal(t, r1, e.Revision)
	require.WithinDuration(t, begin, e.Created, time.Minute)
	r2, err := s.Put(ctx, "k", []byte("two"), 0, pipeline.Always())
	require.NoError(t, err)
	require.Greater(t, r2, r1, "revisions grow")
	e, err = s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "two", string(e.Value))
	require.NoError(t, s.Delete(ctx, "k"))
	_, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, pipeline.ErrNotFound)
	keys, err := s.Keys(ctx, "")
	require.NoError(t, err)
	require.Empty(t, keys, "a deleted key is not listed")
	_, err = s.Put(ctx, "k", []byte("three"), 0, pipeline.IfAbsent())
	require.NoError(t, err, "a deleted key is absent")
}

func storeIfAbsent(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	_, err := s.Put(ctx, "k", []byte("one"), 0, pipeline.IfAbsent())
	require.NoError(t, err)
	_, err = s.Put(ctx, "k", []byte("two"), 0, pipeline.IfAbsent())
	require.ErrorIs(t, err, pipeline.ErrExists)
	e, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "one", string(e.Value), "nothing was written")
}

func storeRevision(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	_, err := s.Put(ctx, "k", []byte("x"), 0, pipeline.IfRevision(7))
	require.ErrorIs(t, err, pipeline.ErrChanged, "nothing is there")
	r1, err := s.Put(ctx, "k", []byte("one"), 0, pipeline.IfRevision(0))
	require.NoError(t, err, "revision 0 is what is not there")
	_, err = s.Put(ctx, "k", []byte("again"), 0, pipeline.IfRevision(0))
	require.True(t, errors.Is(err, pipeline.ErrExists) || errors.Is(err, pipeline.ErrChanged), "%v", err)
	r2, err := s.Put(ctx, "k", []byte("two"), 0, pipeline.IfRevision(r1))
	require.NoError(t, err)
	_, err = s.Put(ctx, "k", []byte("late"), 0, pipeline.IfRevision(r1))
	require.ErrorIs(t, err, pipeline.ErrChanged)
	e, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, pipeline.StoreEntry{Value: []byte("two"), Revision: r2, Created: e.Created}, e)
	require.NoError(t, s.Delete(ctx, "k"))
	_, err = s.Put(ctx, "k", []byte("dead"), 0, pipeline.IfRevision(r2))
	require.ErrorIs(t, err, pipeline.ErrChanged, "a deleted entry has no revision to write over")
}

// race runs put in 16 goroutines and requires one winner; the others get one of the two errors of a condition.
func race(t *testing.T, put func(i int) error) {
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() { errs[i] = put(i) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.True(t, errors.Is(err, pipeline.ErrExists) || errors.Is(err, pipeline.ErrChanged), "%v", err)
	}
	require.Equal(t, 1, won)
}

func storeRace(t *testing.T, s pipeline.Store) {
	race(t, func(i int) error {
		_, err := s.Put(t.Context(), "k", fmt.Append(nil, i), 0, pipeline.IfAbsent())
		return err
	})
}

func storeRevisionRace(t *testing.T, s pipeline.Store) {
	r, err := s.Put(t.Context(), "k", []byte("first"), 0, pipeline.Always())
	require.NoError(t, err)
	race(t, func(i int) error {
		_, err := s.Put(t.Context(), "k", fmt.Append(nil, i), 0, pipeline.IfRevision(r))
		return err
	})
}

func storeValues(t *testing.T, s pipeline.Store) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, v := range map[string][]byte{"all-bytes": all, "empty": {}, "lines": []byte("a\r\nb\x00\n"),
		"json": []byte(`{"a":9007199254740993}`), "large": []byte(strings.Repeat("x", 200<<10))} {
		_, err := s.Put(t.Context(), name, v, 0, pipeline.Always())
		require.NoError(t, err, name)
		e, err := s.Get(t.Context(), name)
		require.NoError(t, err, name)
		require.Equal(t, string(v), string(e.Value), name)
	}
}

func storeIsolated(t *testing.T, s pipeline.Store) {
	v := []byte("value")
	_, err := s.Put(t.Context(), "k", v, 0, pipeline.Always())
	require.NoError(t, err)
	v[0] = 'X'
	for range 2 {
		e, err := s.Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "value", string(e.Value))
		e.Value[0] = 'Y'
	}
}

// TokenForms are strings whose keys cover every form of messages.Token.
func TokenForms() []string {
	return []string{"", "plain", "a.b", "a b", "*", ">", "=", "=h", "$JS", "ä", "日本", "a/b\\c", "UPPER", "-", "_",
		"line\nfeed", "\x00", strings.Repeat("long", 40), strings.Repeat("é", 30), strings.Repeat("x", 64),
		strings.Repeat("x", 65)}
}

func storeKeys(t *testing.T, s pipeline.Store) {
	forms, want := TokenForms(), []string{}
	for i, a := range forms {
		key := messages.Key("tenant", a, "tail")
		want = append(want, key)
		_, err := s.Put(t.Context(), key, fmt.Append(nil, i), 0, pipeline.IfAbsent())
		require.NoError(t, err, "%q -> %s", a, key)
	}
	for i, a := range forms {
		e, err := s.Get(t.Context(), messages.Key("tenant", a, "tail"))
		require.NoError(t, err, "%q", a)
		require.Equal(t, fmt.Sprint(i), string(e.Value), "%q", a)
	}
	got, err := s.Keys(t.Context(), "tenant.")
	require.NoError(t, err)
	require.ElementsMatch(t, want, got)
	for _, a := range forms {
		require.NoError(t, s.Delete(t.Context(), messages.Key("tenant", a, "tail")))
	}
	got, err = s.Keys(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, got)
}

func storePrefix(t *testing.T, s pipeline.Store) {
	for _, k := range []string{"a.1", "a.2", "a.2.x", "ab.1", "b.1"} {
		_, err := s.Put(t.Context(), k, []byte(k), 0, pipeline.Always())
		require.NoError(t, err)
	}
	for prefix, want := range map[string][]string{
		"": {"a.1", "a.2", "a.2.x", "ab.1", "b.1"}, "a.": {"a.1", "a.2", "a.2.x"}, "a": {"a.1", "a.2", "a.2.x", "ab.1"},
		"a.2": {"a.2", "a.2.x"}, "a.2.": {"a.2.x"}, "c": nil, "a.1.": nil, "b.1": {"b.1"},
	} {
		got, err := s.Keys(t.Context(), prefix)
		require.NoError(t, err, prefix)
		slices.Sort(got)
		require.Equal(t, want, got, "prefix %q", prefix)
	}
}

func storeChange(t *testing.T, s pipeline.Store) {
	const writers, each = 8, 10
	var wg sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		wg.Go(func() {
			for n := range each {
				_, err := pipeline.Change(t.Context(), s, "k", 0, func(v *map[string]int) (bool, error) {
					if *v == nil {
						*v = map[string]int{}
					}
					(*v)["count"]++
					(*v)[fmt.Sprintf("%d-%d", i, n)] = 1
					return true, nil
				})
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	v, err := pipeline.Change(t.Context(), s, "k", 0, func(*map[string]int) (bool, error) { return false, nil })
	require.NoError(t, err)
	require.Equal(t, writers*each, v["count"])
	require.Len(t, v, writers*each+1)
}

func storeChangeEdit(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	_, err := pipeline.Change(ctx, s, "k", 0, func(v *int) (bool, error) { *v = 1; return false, nil })
	require.NoError(t, err)
	_, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, pipeline.ErrNotFound, "edit said no")
	_, err = pipeline.Change(ctx, s, "k", 0, func(*int) (bool, error) { return true, errBoom })
	require.ErrorIs(t, err, errBoom)
	_, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, pipeline.ErrNotFound, "edit failed")
	_, err = s.Put(ctx, "k", []byte("no json"), 0, pipeline.Always())
	require.NoError(t, err)
	_, err = pipeline.Change(ctx, s, "k", 0, func(*int) (bool, error) { return true, nil })
	require.ErrorContains(t, err, "k", "what cannot be read is not written over, and the error names the key")
	calls := 0
	_, err = pipeline.Change(ctx, s, "r", 0, func(v *int) (bool, error) {
		if calls++; calls == 1 {
			_, err := s.Put(ctx, "r", []byte("40"), 0, pipeline.Always()) // another writer comes between
			require.NoError(t, err)
		}
		*v += 2
		return true, nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	e, err := s.Get(ctx, "r")
	require.NoError(t, err)
	require.Equal(t, "42", string(e.Value))
}

var errBoom = errors.New("boom")

func storeContext(t *testing.T, s pipeline.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pipeline.Change(ctx, s, "k", 0, func(*int) (bool, error) { return true, nil })
	if err == nil {
		return // a store may answer before it looks at ctx
	}
	require.NotErrorIs(t, err, pipeline.ErrNotFound, "an ended context says nothing about the key")
	require.NotErrorIs(t, err, pipeline.ErrExists)
}

func storeTTL(t *testing.T, s pipeline.Store) {
	ctx := t.Context()
	begin := time.Now()
	_, err := s.Put(ctx, "short", []byte("x"), StoreTTL, pipeline.Always())
	require.NoError(t, err)
	r, err := s.Put(ctx, "renewed", []byte("x"), StoreTTL, pipeline.IfAbsent())
	require.NoError(t, err)
	_, err = s.Put(ctx, "renewed", []byte("y"), time.Hour, pipeline.IfRevision(r))
	require.NoError(t, err, "each write restarts the ttl")
	_, err = s.Put(ctx, "good", []byte("x"), 0, pipeline.Always())
	require.NoError(t, err)
	if _, err = s.Get(ctx, "short"); time.Since(begin) < StoreTTL {
		require.NoError(t, err, "it is there before its end")
	}
	require.EventuallyWithT(t, func(c *assertT) {
		_, err := s.Get(ctx, "short")
		require.ErrorIs(c, err, pipeline.ErrNotFound)
	}, StoreTTL+30*time.Second, 50*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(begin), StoreTTL, "not gone before its end")
	keys, err := s.Keys(ctx, "")
	require.NoError(t, err)
	slices.Sort(keys)
	require.Equal(t, []string{"good", "renewed"}, keys)
	_, err = s.Put(ctx, "short", []byte("z"), 0, pipeline.IfAbsent())
	require.NoError(t, err, "an entry past its end is absent")
}
