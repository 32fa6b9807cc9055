package bus

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// nodeReport is what one process says about itself to whoever gathers.
type nodeReport struct {
	ID      string                    `json:"id"` // of the process's node, new with each start
	Name    string                    `json:"name"`
	Rows    []pipeline.Stat           `json:"rows"`
	Details map[string]map[string]any `json:"details"`
	Builds  int64                     `json:"builds"`
	LastNs  int64                     `json:"lastNs"`
	Hosts   []string                  `json:"hosts"` // kind/stage that it serves
	Targets []string                  `json:"targets"`
	Asked   map[string]int            `json:"asked"`    // questions without an answer, by kind/stage that was asked
	Room    []Capacity                `json:"capacity"` // of targets
	Entry   bool                      `json:"entry"`
	Held    int                       `json:"held"`
	Late    int64                     `json:"lateHops"` // questions that were read too late
	Dead    int64                     `json:"deadLetters"`
	Back    int64                     `json:"handedBack"`
	Refused int64                     `json:"refusedReplies"` // requests whose reply subject is not an inbox
}

func (r *reports) own(ctx context.Context) nodeReport {
	out := nodeReport{ID: r.opts.Name, Name: r.nc.Opts.Name, Rows: r.opts.Manager.Stats(),
		Details: map[string]map[string]any{}, Entry: r.opts.Entry, Held: r.calls.count(),
		Late: r.stats.late.Load(), Dead: r.stats.dead.Load(), Back: r.stats.handedBack.Load(),
		Refused: r.guard.refused.Load()}
	for _, s := range r.opts.Manager.Stages("") {
		if !r.opts.hosts(s.Stage) {
			continue
		}
		out.Hosts = append(out.Hosts, string(s.Kind)+"/"+s.Name)
		if s.Details != nil {
			out.Details[string(s.Kind)+"/"+s.Name] = s.Details(ctx)
		}
	}
	out.Asked, out.Room = r.asked(), r.capacity()
	for _, t := range r.opts.Targets {
		out.Targets = append(out.Targets, string(t.Kind)+"/"+t.Class)
	}
	builds, last := r.opts.Manager.Builds()
	out.Builds, out.LastNs = builds, int64(last)
	return out
}

// Times of gather: how long it waits for the next answer of processes that it does not know, and for those that it
// does. A process that is known and does not answer within gatherKnown is not waited for until it answers again.
const (
	gatherIdle  = 200 * time.Millisecond
	gatherKnown = 2 * time.Second
)

// gather asks every process of the installation. It waits for all that have a mark or answered the last time, and for a
// short while for others; its own report needs no question.
func (r *reports) gather(ctx context.Context) ([]nodeReport, error) {
	sub, err := r.nc.SubscribeSync(r.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := r.nc.PublishRequest(r.subj.Control("control", "report"), sub.Subject, nil); err != nil {
		return nil, err
	}
	out := []nodeReport{}
	missing := r.peers.known(r.presence.names())
	begin := time.Now()
	for {
		wait := gatherIdle
		if len(missing) > 0 {
			wait = max(wait, gatherKnown-time.Since(begin))
		}
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		if err != nil {
			break
		}
		var one nodeReport
		if json.Unmarshal(m.Data, &one) != nil || one.ID == "" {
			continue
		}
		delete(missing, one.ID)
		if !slices.ContainsFunc(out, func(o nodeReport) bool { return o.ID == one.ID }) {
			out = append(out, one)
		}
	}
	if !slices.ContainsFunc(out, func(o nodeReport) bool { return o.ID == r.opts.Name }) {
		var own nodeReport // by way of JSON like the others, so that counters are added alike
		if err := json.Unmarshal(rawjson.Encode(r.own(ctx)), &own); err == nil {
			out = append(out, own)
		}
	}
	slices.SortFunc(out, func(a, b nodeReport) int { return strings.Compare(a.ID, b.ID) })
	if ctx.Err() == nil {
		r.peers.set(out, missing)
	}
	return out, ctx.Err()
}

// peers are the processes that answered the last gathering, and those that were waited for in vain.
type peers struct {
	mu     sync.Mutex
	ids    []string
	silent map[string]bool
}

// known are the processes to wait for, of those that are marked.
func (p *peers) known(marked []string) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]bool{}
	maps.DeleteFunc(p.silent, func(id string, _ bool) bool { return !slices.Contains(marked, id) })
	for _, id := range marked {
		if !p.silent[id] {
			out[id] = true
		}
	}
	for _, id := range p.ids {
		out[id] = true
	}
	return out
}

func (p *peers) set(reports []nodeReport, missing map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = p.ids[:0]
	for _, r := range reports {
		p.ids = append(p.ids, r.ID)
		delete(p.silent, r.ID)
	}
	if p.silent == nil {
		p.silent = map[string]bool{}
	}
	maps.Copy(p.silent, missing)
}

// serve answers whoever gathers; every process does, whatever it hosts.
func (r *reports) serve() error {
	_, err := r.subs.hear(r.subj.Control("control", "report"), r.answering(func(m *nats.Msg) {
		r.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = m.Respond(rawjson.Encode(r.own(ctx)))
		})
	}))
	return err
}
