package bus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A cancel that comes at any moment while a held call is noted or looked at has the call looked at now.
func TestACancelIsNotLostWhileAHeldCallIsNoted(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	var l *heldlist
	cancelled := false
	cancel := func() {
		cancelled = true
		l.due("c")
	}
	l = newHeldlist(nil, func(string) bool {
		was := cancelled
		if !was {
			cancel() // the cancel comes just after the question
		}
		return was
	})
	l.wait("t.c", "c", later)
	require.Equal(t, []string{"t.c"}, l.ready(time.Now()), "noted")

	l.set("t.c", later)
	cancel()
	l.looked("t.c", later, later.Add(time.Hour))
	require.Equal(t, []string{"t.c"}, l.ready(time.Now()), "looked at")

	l.set("t.c", later)
	l.looked("t.c", later, later.Add(time.Hour))
	require.Empty(t, l.ready(later), "nothing came meanwhile")
	l.looked("t.c", later.Add(time.Hour), time.Time{})
	require.Empty(t, l.at)
}
