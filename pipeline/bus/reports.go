package bus

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// reports are what the processes of an installation say about themselves, and what this one says.
type reports struct {
	opts      *Options
	nc        *nats.Conn
	js        jetstream.JetStream
	subj      messages.Subjects
	stats     *nodeStats
	guard     *replyGuard
	presence  *presence
	calls     *running
	held      *heldlist
	subs      *subscriptions
	tasks     *tally
	answering func(nats.MsgHandler) nats.MsgHandler
	asked     func() map[string]int
	capacity  func() []Capacity
	past      *past
	peers     peers
}

// Stats implements pipeline.Control: the counters of all processes, added up, also of those that are gone.
func (r *reports) Stats(ctx context.Context) (pipeline.Stats, error) {
	reports, err := r.gather(ctx)
	if err != nil {
		return pipeline.Stats{}, messages.NewFault(messages.StoreUnavailable, "the processes cannot be asked: %v",
			jet.Said(err))
	}
	return r.sum(r.all(ctx, reports)), nil
}

func (r *reports) sum(reports []nodeReport) pipeline.Stats {
	rows := r.opts.Manager.Stats()
	for i := range rows {
		rows[i].Invocations, rows[i].Nanos, rows[i].Errors, rows[i].LastError = 0, 0, 0, nil
	}
	details := map[string]map[string]any{}
	var builds int64
	var last time.Duration
	for _, p := range reports {
		builds += p.Builds
		last = max(last, time.Duration(p.LastNs))
		for _, row := range p.Rows {
			i := slices.IndexFunc(rows, func(s pipeline.Stat) bool { return s.Type == row.Type && s.Stage == row.Stage })
			if i < 0 {
				continue
			}
			rows[i].Invocations += row.Invocations
			rows[i].Nanos += row.Nanos
			rows[i].Errors += row.Errors
			if row.LastError != nil {
				rows[i].LastError = row.LastError
			}
		}
		for stage, d := range p.Details {
			details[stage] = addDetails(details[stage], d)
		}
	}
	return pipeline.NewStats(rows, details, r.opts.Manager.Conflicts(), builds, last)
}

// addDetails adds a process's own counters of a stage to those of others. Names that tell a setting or a size of a
// shared store are the same everywhere and are not added; a rate is worked out anew.
func addDetails(sum, d map[string]any) map[string]any {
	if sum == nil {
		sum = map[string]any{}
	}
	shared := []string{"cacheSize", "ttlMs", "maxRetries", "baseDelayMs", "maxEntries"}
	for k, v := range d {
		f, isNumber := v.(float64)
		was, seen := sum[k].(float64)
		if isNumber && seen && !slices.Contains(shared, k) {
			sum[k] = was + f
			continue
		}
		sum[k] = v
	}
	hits, ok1 := sum["cacheHits"].(float64)
	misses, ok2 := sum["cacheMisses"].(float64)
	if ok1 && ok2 {
		sum["hitRate"] = 0.0
		if hits+misses > 0 {
			sum["hitRate"] = float64(int(hits/(hits+misses)*1000+0.5)) / 1000
		}
	}
	return sum
}

// Diagnostics implements pipeline.Control: statistics and declarations, what the processes serve, stages without a
// worker, backlog and dead letters.
func (r *reports) Diagnostics(ctx context.Context) (any, error) {
	reports, err := r.gather(ctx)
	if err != nil {
		return nil, messages.NewFault(messages.StoreUnavailable, "the processes cannot be asked: %v", jet.Said(err))
	}
	type diagnostics struct {
		pipeline.Diagnostics
		Processes         []nodeReport `json:"processes"`
		StagesWithoutWork []string     `json:"stagesWithoutWorker"`
		Queues            []queue      `json:"queues"`
		DeadLetters       uint64       `json:"deadLetters"`
	}
	d := diagnostics{
		Diagnostics: pipeline.NewDiagnostics(r.sum(r.all(ctx, reports)), r.opts.Manager.Stages("")),
		Processes:   reports, StagesWithoutWork: []string{},
	}
	for _, s := range r.opts.Manager.Stages("") {
		id := string(s.Kind) + "/" + s.Name
		if s.Enabled() && !slices.ContainsFunc(reports, func(p nodeReport) bool { return slices.Contains(p.Hosts, id) }) {
			d.StagesWithoutWork = append(d.StagesWithoutWork, id)
		}
	}
	d.Queues = r.queues(ctx)
	if s, err := r.js.Stream(ctx, jet.DeadStream); err == nil {
		d.DeadLetters = s.CachedInfo().State.Msgs
	}
	return d, nil
}

// queue is how full the queue of stored calls is, for one of its consumers.
type queue struct {
	Stream     string `json:"stream"`
	Consumer   string `json:"consumer"`
	Pending    uint64 `json:"pending"`
	AckPending int    `json:"ackPending"`
	Limit      int    `json:"ackPendingLimit"`
	Waiting    int    `json:"waitingPulls"`
}

func (r *reports) queues(ctx context.Context) []queue {
	out := []queue{}
	s, err := r.js.Stream(ctx, jet.CallsStream)
	if err != nil {
		return out
	}
	for c := range s.ListConsumers(ctx).Info() {
		out = append(out, queue{jet.CallsStream, c.Name, c.NumPending, c.NumAckPending, c.Config.MaxAckPending, c.NumWaiting})
	}
	return out
}

// Counters reads the counters of this process. It asks nobody.
func (r *reports) Counters() Counters {
	r.held.mu.Lock()
	held := len(r.held.at)
	r.held.mu.Unlock()
	return Counters{Dead: r.stats.dead.Load(), Late: r.stats.late.Load(), HandedBack: r.stats.handedBack.Load(),
		Refused: r.guard.refused.Load(), Parked: int64(held)}
}

// QueueState is how full a queue of stored calls is.
type QueueState struct {
	Name           string
	Pending, Taken int64 // not pulled; pulled, and not ended
}

// Queues asks the server how full the queues of stored calls are. What it does not answer until ctx ends is left out.
func (r *reports) Queues(ctx context.Context) []QueueState {
	var out []QueueState
	for _, q := range r.queues(ctx) {
		out = append(out, QueueState{Name: q.Consumer, Pending: int64(q.Pending), Taken: int64(q.AckPending)})
	}
	return out
}
