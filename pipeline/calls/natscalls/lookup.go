package natscalls

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// Lookup finds calls. It is safe for concurrent use.
type Lookup struct {
	conn     *nats.Conn
	subjects messages.Subjects
	kept     bool
	asked    peers
}

// NewLookup looks calls up on a connection. Where nothing is kept it knows the running ones only.
func NewLookup(nc *nats.Conn, root string, kept bool) *Lookup {
	return &Lookup{conn: nc, subjects: messages.Subjects{Root: root}, kept: kept}
}

// Bounds of one page.
const (
	usualRows = 50
	mostRead  = 20_000 // stories that are looked through for one page
	firstSpan = 256
	widest    = 8192
)

// List returns a page of what matches.
func (l *Lookup) List(ctx context.Context, q calls.Query) (calls.Page, error) {
	limit := min(max(q.Limit, 0), calls.MostRows)
	limit = cmp.Or(limit, usualRows)
	page := calls.Page{Calls: []calls.Story{}}
	before, err := cursor(q)
	if err != nil {
		return page, err
	}
	seen := map[string]bool{}
	if before == 0 && mayRun(q) {
		running, whole := l.running(ctx, ask{Tenant: q.Tenant})
		page.Silent = !whole
		slices.SortFunc(running, func(a, b calls.Story) int { return b.Accepted.Compare(a.Accepted) })
		for _, s := range running {
			if q.Matches(s) {
				page.Calls = append(page.Calls, s.Row())
				seen[s.Call] = true
			}
		}
	}
	if l.kept && len(page.Calls) < limit {
		if err = l.ended(ctx, q, before, limit, seen, &page); err != nil {
			err = l.unreadable(err)
		}
	}
	return page, err
}

// unreadable is the fault of stories that cannot be read.
func (l *Lookup) unreadable(err error) error {
	if !l.conn.IsConnected() {
		err = errors.New("there is no connection to NATS") // the client speaks of its buffers
	}
	return messages.NewFault(messages.StoreUnavailable, "the stories of calls cannot be read: %v", err).From("entry")
}

func cursor(q calls.Query) (uint64, error) {
	if q.Before == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(q.Before, 10, 64)
	if err != nil || n == 0 {
		return 0, messages.NewFault(messages.InvalidRequest, "before is not the next of an earlier page").At("before")
	}
	return n, nil
}

// mayRun reports whether a running call can match.
func mayRun(q calls.Query) bool {
	return q.Outcome == "" && (q.State == "" || q.State == calls.Running) &&
		(q.Until.IsZero() || time.Now().Before(q.Until))
}

// ended adds calls from the stream, from its end backwards. The stream is read in spans, which grow as long as they
// hold little that matches.
func (l *Lookup) ended(
	ctx context.Context,
	q calls.Query,
	before uint64,
	limit int,
	seen map[string]bool,
	page *calls.Page,
) error {
	subject := l.subjects.Stories(q.Kind, q.Tenant, token(q), "")
	high, err := l.newest(ctx, q, subject, before)
	if err != nil || high == 0 {
		return err
	}
	looked := 0
	for span := uint64(firstSpan); high > 0; span = min(span*2, widest) {
		low := uint64(1)
		if high > span {
			low = high - span + 1
		}
		found, err := read(ctx, l.conn, get{Seq: low, Next: subject, Batch: int(span), upTo: high})
		if err != nil {
			return err
		}
		slices.Reverse(found)
		for _, one := range found {
			if !q.Since.IsZero() && one.at.Before(q.Since) {
				return nil
			}
			looked++
			if s, ok := one.story(); ok && q.Matches(s) && !seen[s.Call] {
				seen[s.Call] = true
				page.Calls = append(page.Calls, s.Row())
			}
			if len(page.Calls) >= limit || looked >= mostRead {
				page.Next = next(one.seq)
				return nil
			}
		}
		if len(found) == 0 && l.first(ctx, subject) > high {
			return nil
		}
		high = low - 1
	}
	return nil
}

// next is the cursor of what is older than a place in the stream.
func next(seq uint64) string {
	if seq <= 1 {
		return ""
	}
	return strconv.FormatUint(seq, 10)
}

// token is the outcome as it stands in subjects; empty if it does not.
func token(q calls.Query) string {
	switch {
	case q.Outcome != "" && q.Outcome != calls.AnyFault:
		return q.Outcome
	case q.State == calls.Held || q.State == calls.Moved:
		return q.State
	}
	return ""
}

// newest is the place in the stream where the list begins; 0 if there is nothing.
func (l *Lookup) newest(ctx context.Context, q calls.Query, subject string, before uint64) (uint64, error) {
	high := before - 1
	if before == 0 {
		last, err := read(ctx, l.conn, get{Last: subject})
		if err != nil || len(last) == 0 {
			return 0, err
		}
		high = last[0].seq
	}
	if q.Until.IsZero() {
		return high, nil
	}
	until := q.Until.Add(lag)
	later, err := read(ctx, l.conn, get{Start: &until})
	if err == nil && len(later) > 0 {
		high = min(high, later[0].seq-1)
	}
	return high, err
}

// lag is how much later than its end a story may have been stored.
const lag = 10 * time.Second

// first is the place of the oldest that the stream still has of a subject; beyond all if there is none.
func (l *Lookup) first(ctx context.Context, subject string) uint64 {
	found, err := read(ctx, l.conn, get{Seq: 1, Next: subject})
	if err != nil || len(found) == 0 {
		return 1<<64 - 1
	}
	return found[0].seq
}

func (s stored) story() (out calls.Story, ok bool) {
	return out, json.Unmarshal(s.data, &out) == nil
}

// Get returns the parts of one call's story, the oldest first; the last says how it stands. An empty tenant means any.
// A call of which nothing is known, or of another tenant, is the fault not_found.
func (l *Lookup) Get(ctx context.Context, tenant, call string) ([]calls.Story, error) {
	running, _ := l.running(ctx, ask{Tenant: tenant, Call: call})
	var parts []calls.Story
	if l.kept {
		found, err := read(ctx, l.conn, get{Seq: 1, Next: l.subjects.Stories("", tenant, "", call), Batch: mostParts})
		if err != nil && (len(running) == 0 || !errors.Is(err, errNoAnswer)) {
			return nil, l.unreadable(err)
		}
		for _, one := range found {
			if s, ok := one.story(); ok && s.Call == call {
				parts = append(parts, s)
			}
		}
	}
	if n := len(parts); n == 0 || parts[n-1].State != calls.Ended {
		parts = append(parts, running...)
	}
	if len(parts) == 0 {
		return nil, messages.NewFault(messages.NotFound,
			"nothing is known of call %s; stories are kept for a while only", call).
			From("entry")
	}
	return parts, nil
}

// mostParts bounds the parts of one story.
const mostParts = 64
