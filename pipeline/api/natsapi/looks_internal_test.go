package natsapi

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Somebody left when nobody was there for a whole period. Who listens to all inboxes may be the caller, unless another
// one was there before (EN-7).
func TestWhenACallerHasLeft(t *testing.T) {
	t.Parallel()
	own, all, none, both := trace{own: true}, trace{all: true}, trace{}, trace{own: true, all: true}
	for i, row := range []struct {
		seen []trace // one each second
		left int     // after so many; 0: not
	}{
		{[]trace{own, own, own, own, own, own, own, own}, 0},
		{[]trace{own, none, none, none, none, none, none}, 6},
		{[]trace{none, none, none, none, none}, 5},
		{[]trace{own, none, none, none, own, none, none, none, none}, 0},
		{[]trace{all, all, all, all, all, all, all}, 0},
		{[]trace{both, all, all, all, all, all, all}, 6},
		{[]trace{all, none, none, none, none, none}, 6},
		{[]trace{both, both, both, both, both, both, both}, 0},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			left := make(chan struct{}, len(row.seen))
			w := &look{all: &looks{every: 4 * time.Second}, left: func() { left <- struct{}{} }}
			w.timer = time.AfterFunc(time.Hour, func() {})
			now, over := time.Now(), 0
			for n, seen := range row.seen {
				if w.seen(seen, now.Add(time.Duration(n)*time.Second)); w.over && over == 0 {
					over = n + 1
				}
			}
			require.Equal(t, row.left, over)
			if over > 0 {
				<-left
			}
			require.Empty(t, left, "it is said once")
		})
	}
}

// What counts is what the server tells that this process is connected to.
func TestWhatAServerTellsOfAnInbox(t *testing.T) {
	t.Parallel()
	const in = `{"type":"in","kind":0,"subj":"_INBOX.x"}`
	for text, want := range map[string]*trace{
		`{"events":[` + in + `]}`: {},
		`{"events":[` + in + `,{"type":"eg","kind":0,"sub":"_INBOX.x"}]}`:      {own: true},
		`{"events":[` + in + `,{"type":"eg","kind":0,"sub":"_INBOX.a.*"}]}`:    {own: true},
		`{"events":[` + in + `,{"type":"eg","kind":0,"sub":"_INBOX.>"}]}`:      {all: true},
		`{"events":[` + in + `,{"type":"eg","kind":0,"sub":">"}]}`:             {all: true},
		`{"events":[` + in + `,{"type":"eg","kind":0,"sub":"_INBOX.mine.>"}]}`: {own: true},
		`{"events":[` + in + `,{"type":"eg","kind":1,"hop":"1"}]}`:             {own: true},
		`{"events":[{"type":"in","kind":1,"subj":"_INBOX.x"}]}`:                nil,
		`{"events":[{"type":"in","kind":0,"error":"refused"}]}`:                nil,
		`{"events":[]}`: nil, `{}`: nil, `x`: nil, ``: nil,
	} {
		got, ok := readTrace([]byte(text))
		require.Equal(t, want != nil, ok, text)
		if want != nil {
			require.Equal(t, *want, got, text)
		}
	}
}
