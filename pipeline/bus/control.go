package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

var _ pipeline.Control = (*Node)(nil)

// switchKey is the key of a stage's switch in the control bucket: stage.<kind>.<name>.enabled, value true or false.
func switchKey(kind messages.Kind, stage string) string {
	return "stage." + string(kind) + "." + messages.Token(stage) + ".enabled"
}

// watchSwitches applies the switches in the control bucket, now and as they change, so that "nats kv put" works as
// well as the API. A watch can die in a reconnect, so everything is read again every 30 s.
func (n *Node) watchSwitches(ctx context.Context) error {
	if err := n.readSwitches(ctx); err != nil {
		return fmt.Errorf("bus: switches: %w", err)
	}
	n.loops.Go(func() {
		for ctx.Err() == nil {
			if err := n.followSwitches(ctx); err != nil && ctx.Err() == nil {
				n.log.Debug("watch of the switches ended; it begins again", "err", err)
				pause(ctx, time.Second)
			}
		}
	})
	return nil
}

func (n *Node) readSwitches(ctx context.Context) error {
	keys, err := n.control.Keys(ctx, "stage.")
	if err != nil {
		return err
	}
	for _, k := range keys {
		e, err := n.control.Get(ctx, k)
		if err == nil {
			n.applySwitch(k, e.Value)
		}
	}
	return nil
}

func (n *Node) followSwitches(ctx context.Context) error {
	w, err := n.control.kv.Watch(ctx, "stage.>")
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	again := time.NewTicker(30 * time.Second)
	defer again.Stop()
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return fmt.Errorf("watch closed")
			}
			if e != nil && e.Operation() == jetstream.KeyValuePut {
				n.applySwitch(e.Key(), e.Value())
			}
		case <-again.C:
			if err := n.readSwitches(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) applySwitch(key string, value []byte) {
	t := strings.Split(key, ".")
	if len(t) != 4 || t[3] != "enabled" {
		return
	}
	name, ok := messages.Untoken(t[2])
	on := strings.TrimSpace(string(value))
	if !ok || on != "true" && on != "false" {
		n.log.Warn("switch not understood; the value is true or false", "key", key, "value", on)
		return
	}
	s, found := n.opts.Manager.Get(messages.Kind(t[1]), name)
	if !found {
		n.log.Warn("switch for a stage that this process does not know", "key", key)
		return
	}
	if s.Enabled() != (on == "true") {
		n.log.Info("stage switched", "kind", t[1], "stage", name, "enabled", on)
		n.opts.Manager.Switch(messages.Kind(t[1]), name, on == "true")
	}
}

// Switch implements pipeline.Control: the switch is a key in the control bucket, and every node follows it.
func (n *Node) Switch(ctx context.Context, name string, on bool, confirm, by string) (pipeline.Switched, error) {
	out, err := pipeline.LocalControl{Manager: n.opts.Manager}.Switch(ctx, name, on, confirm, by)
	if err != nil {
		return out, err
	}
	for _, s := range out.Stages {
		if _, err := n.control.Put(ctx, switchKey(s.Type, s.Stage), fmt.Appendf(nil, "%t", on), 0, pipeline.Always()); err != nil {
			return out, messages.NewFault(messages.StoreUnavailable, "the switch of %s is not stored, so only this process follows it: %v", s.Stage, err)
		}
	}
	_ = n.nc.Publish(n.subj.Event("switch"), messages.Encode(out))
	return out, nil
}

// nodeReport is what one process says about itself to whoever gathers.
type nodeReport struct {
	Rows    []pipeline.Stat           `json:"rows"`
	Details map[string]map[string]any `json:"details"`
	Builds  int64                     `json:"builds"`
	LastNs  int64                     `json:"lastNs"`
	Hosts   []string                  `json:"hosts"` // kind/stage that it serves
	Targets []string                  `json:"targets"`
	Entry   bool                      `json:"entry"`
	Held    int                       `json:"held"`
	Late    int64                     `json:"lateHops"`
	Dead    int64                     `json:"deadLetters"`
	Back    int64                     `json:"handedBack"`
}

func (n *Node) ownReport(ctx context.Context) nodeReport {
	r := nodeReport{Rows: n.opts.Manager.Stats(), Details: map[string]map[string]any{}, Entry: n.opts.Entry, Held: n.Held(),
		Late: n.stats.late.Load(), Dead: n.stats.dead.Load(), Back: n.stats.handedBack.Load()}
	for _, s := range n.opts.Manager.Stages("") {
		if _, ok := n.hosted(s.Kind, s.Name); !ok {
			continue
		}
		r.Hosts = append(r.Hosts, string(s.Kind)+"/"+s.Name)
		if s.Details != nil {
			r.Details[string(s.Kind)+"/"+s.Name] = s.Details(ctx)
		}
	}
	for _, t := range n.opts.Targets {
		r.Targets = append(r.Targets, string(t.Kind)+"/"+t.Class)
	}
	builds, last := n.opts.Manager.Builds()
	r.Builds, r.LastNs = builds, int64(last)
	return r
}

// gather asks every process of the installation. It waits until no answer has come for a short while.
func (n *Node) gather(ctx context.Context) ([]nodeReport, error) {
	sub, err := n.nc.SubscribeSync(n.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := n.nc.PublishRequest(n.subj.Control("control", "report"), sub.Subject, nil); err != nil {
		return nil, err
	}
	var out []nodeReport
	wait := 500 * time.Millisecond
	for {
		next, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(next)
		cancel()
		if err != nil {
			if len(out) == 0 {
				return []nodeReport{n.ownReport(ctx)}, nil
			}
			return out, nil
		}
		var r nodeReport
		if json.Unmarshal(m.Data, &r) == nil {
			out = append(out, r)
		}
		wait = 100 * time.Millisecond
	}
}

// Stats implements pipeline.Control: the counters of all processes, added up.
func (n *Node) Stats(ctx context.Context) (pipeline.Stats, error) {
	reports, err := n.gather(ctx)
	if err != nil {
		return pipeline.Stats{}, messages.NewFault(messages.StoreUnavailable, "the processes cannot be asked: %v", err)
	}
	return n.sum(reports), nil
}

func (n *Node) sum(reports []nodeReport) pipeline.Stats {
	rows := n.opts.Manager.Stats()
	for i := range rows {
		rows[i].Invocations, rows[i].Nanos, rows[i].Errors, rows[i].LastError = 0, 0, 0, nil
	}
	details := map[string]map[string]any{}
	var builds int64
	var last time.Duration
	for _, r := range reports {
		builds += r.Builds
		last = max(last, time.Duration(r.LastNs))
		for _, row := range r.Rows {
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
		for stage, d := range r.Details {
			details[stage] = addDetails(details[stage], d)
		}
	}
	return pipeline.NewStats(rows, details, n.opts.Manager.Conflicts(), builds, last)
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
func (n *Node) Diagnostics(ctx context.Context) (any, error) {
	reports, err := n.gather(ctx)
	if err != nil {
		return nil, messages.NewFault(messages.StoreUnavailable, "the processes cannot be asked: %v", err)
	}
	type queue struct {
		Stream     string `json:"stream"`
		Consumer   string `json:"consumer"`
		Pending    uint64 `json:"pending"`
		AckPending int    `json:"ackPending"`
		Limit      int    `json:"ackPendingLimit"`
		Waiting    int    `json:"waitingPulls"`
	}
	type diagnostics struct {
		pipeline.Diagnostics
		Processes         []nodeReport `json:"processes"`
		StagesWithoutWork []string     `json:"stagesWithoutWorker"`
		Queues            []queue      `json:"queues"`
		DeadLetters       uint64       `json:"deadLetters"`
	}
	d := diagnostics{
		Diagnostics: pipeline.NewDiagnostics(n.sum(reports), n.opts.Manager.Stages("")),
		Processes:   reports, StagesWithoutWork: []string{}, Queues: []queue{},
	}
	for _, s := range n.opts.Manager.Stages("") {
		id := string(s.Kind) + "/" + s.Name
		if s.Enabled() && !slices.ContainsFunc(reports, func(r nodeReport) bool { return slices.Contains(r.Hosts, id) }) {
			d.StagesWithoutWork = append(d.StagesWithoutWork, id)
		}
	}
	for _, stream := range []string{CallsStream, HopsStream} {
		s, err := n.js.Stream(ctx, stream)
		if err != nil {
			continue
		}
		list := s.ListConsumers(ctx)
		for c := range list.Info() {
			d.Queues = append(d.Queues, queue{stream, c.Name, c.NumPending, c.NumAckPending, c.Config.MaxAckPending, c.NumWaiting})
		}
	}
	if s, err := n.js.Stream(ctx, DeadStream); err == nil {
		d.DeadLetters = s.CachedInfo().State.Msgs
	}
	return d, nil
}

// serveReport answers for this process alone. Every process does: a worker without the entry role folds the statistics
// of submitted calls that it ends, and its stages are not without a worker.
func (n *Node) serveReport() error {
	return n.listen(n.subj.Control("control", "report"), func(m *nats.Msg) {
		n.work.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = m.Respond(messages.Encode(n.ownReport(ctx)))
		})
	})
}

// serveControl answers the control subjects that one process of the entry role answers for all.
func (n *Node) serveControl() error {
	verbs := map[string]func(ctx context.Context, m *nats.Msg) (any, error){
		"stats":       func(ctx context.Context, _ *nats.Msg) (any, error) { return n.Stats(ctx) },
		"diagnostics": func(ctx context.Context, _ *nats.Msg) (any, error) { return n.Diagnostics(ctx) },
		"enable":      func(ctx context.Context, m *nats.Msg) (any, error) { return n.switchByMsg(ctx, m, true) },
		"disable":     func(ctx context.Context, m *nats.Msg) (any, error) { return n.switchByMsg(ctx, m, false) },
	}
	for verb, do := range verbs {
		if err := n.face(n.subj.Control("control", verb), func(m *nats.Msg) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			v, err := do(ctx, m)
			if err != nil {
				_ = m.RespondMsg(refusal(m.Reply, messages.AsFault(err, "control")))
				return
			}
			_ = m.Respond(messages.Encode(v))
		}); err != nil {
			return err
		}
	}
	return nil
}

// switchByMsg reads {"name":"...","confirm":"..."} or the bare name.
func (n *Node) switchByMsg(ctx context.Context, m *nats.Msg, on bool) (any, error) {
	var ask struct{ Name, Confirm string }
	if json.Unmarshal(m.Data, &ask) != nil {
		ask.Name = strings.TrimSpace(string(m.Data))
	}
	return n.Switch(ctx, ask.Name, on, ask.Confirm, "nats")
}
