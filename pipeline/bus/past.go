package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// past keeps what processes have counted, so that the counters of an installation do not fall when one of them ends.
// Each stores its own from time to time, and when it stops; whoever adds up reads those of processes that do not
// answer. A process that is killed takes with it what it counted since.
type past struct {
	store *jet.Bucket
	key   string
	rows  func() (rows []pipeline.Stat, builds int64)

	keeping sync.Mutex // of what was stored last, and when
	stored  []byte
	at      time.Time

	mu   sync.Mutex
	gone map[string]nodeReport // as they were read, by key
}

// pastEvery is how often counters are stored that have changed. Those that have not are stored again before their
// bucket lets them go. Their keys begin with what no tenant's name can.
const (
	pastEvery = 10 * time.Second
	pastAnew  = 12 * time.Hour
	pastKeys  = "=stats."
)

func newPast(ctx context.Context, n *Node) (*past, error) {
	b, err := jet.OpenBucket(ctx, n.js, jet.LimitsBucket)
	m := n.opts.Manager
	return &past{store: b, key: pastKeys + messages.Token(n.opts.Name), gone: map[string]nodeReport{},
		rows: func() ([]pipeline.Stat, int64) {
			builds, _ := m.Builds()
			return m.Stats(), builds
		}}, err
}

// keep stores the counters of this process, if there is something to store.
func (p *past) keep(ctx context.Context) error {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	rows, builds := p.rows()
	rows = slices.DeleteFunc(rows, func(s pipeline.Stat) bool { return s.Invocations == 0 && s.Errors == 0 })
	if len(rows) == 0 && builds == 0 {
		return nil
	}
	data := rawjson.Encode(nodeReport{Rows: rows, Builds: builds})
	if bytes.Equal(data, p.stored) && time.Since(p.at) < pastAnew {
		return nil
	}
	_, err := p.store.Put(ctx, p.key, data, 0, pipeline.Always())
	if err == nil {
		p.stored, p.at = data, time.Now()
	}
	return err
}

// of are the counters of the processes that are not among the reports.
func (p *past) of(ctx context.Context, reports []nodeReport) ([]nodeReport, error) {
	keys, err := p.store.Keys(ctx, pastKeys)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range reports { // it may count on
		delete(p.gone, pastKeys+messages.Token(r.ID))
	}
	var out []nodeReport
	for _, key := range keys {
		if slices.ContainsFunc(reports, func(r nodeReport) bool { return key == pastKeys+messages.Token(r.ID) }) {
			continue
		}
		r, known := p.gone[key]
		if !known {
			e, err := p.store.Get(ctx, key)
			if err != nil || json.Unmarshal(e.Value, &r) != nil {
				continue
			}
			r.ID = strings.TrimPrefix(key, pastKeys)
			p.gone[key] = r
		}
		out = append(out, r)
	}
	return out, nil
}

// all adds the counters of processes that are gone to the reports, for sums. Without their store the sum is of those
// that answered.
func (r *reports) all(ctx context.Context, reports []nodeReport) []nodeReport {
	gone, err := r.past.of(ctx, reports)
	if err != nil {
		r.opts.Log.Debug("the counters of processes that are gone cannot be read", "err", err)
	}
	return append(gone, reports...)
}

// keepCounters stores the counters of this process until ctx ends.
func (n *Node) keepCounters(ctx context.Context) {
	every(ctx, pastEvery, func() {
		if err := n.past.keep(ctx); err != nil && ctx.Err() == nil {
			n.log.Debug("the counters of this process are not stored", "err", err)
		}
	})
}
