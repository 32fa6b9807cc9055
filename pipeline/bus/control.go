package bus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

var _ pipeline.Control = (*Node)(nil)

// switchKey is the key of a stage's switch in the control bucket: stage.<kind>.<name>.enabled, value true or false. The
// name is the stage's own or its class; of two keys for one stage the later wins. A mandatory or fixed stage is turned
// off by "false <name>" only. Without a key a stage is as the configuration says.
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
				_ = wait(ctx, time.Second)
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
	type set struct {
		key string
		pipeline.StoreEntry
	}
	var all []set
	for _, k := range keys {
		if e, err := n.control.Get(ctx, k); err == nil {
			all = append(all, set{k, e})
		}
	}
	slices.SortFunc(all, func(a, b set) int { return cmp.Compare(a.Revision, b.Revision) })
	there := map[*pipeline.Managed]bool{}
	for _, e := range all {
		there[n.applySwitch(e.key, e.Value)] = true
	}
	for s := range n.switched {
		if !there[s] {
			delete(n.switched, s)
			n.turn(s, s.Default())
		}
	}
	return nil
}

// turn turns a stage on or off in this process.
func (n *Node) turn(s *pipeline.Managed, on bool) {
	if s.Enabled() != on {
		n.log.Info("stage switched", "kind", s.Kind, "stage", s.Name, "enabled", on)
		n.opts.Manager.Switch(s.Kind, s.Name, on)
	}
}

func (n *Node) followSwitches(ctx context.Context) error {
	w, err := n.control.Watch(ctx, "stage.>")
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
			switch {
			case e == nil:
			case e.Operation() == jetstream.KeyValuePut:
				n.applySwitch(e.Key(), e.Value())
			default: // deleted: another key may still switch the stage
				if err := n.readSwitches(ctx); err != nil {
					return err
				}
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

// applySwitch follows a key, and returns the stage that it is for; nil if it is for none.
func (n *Node) applySwitch(key string, value []byte) *pipeline.Managed {
	t := strings.Split(key, ".")
	if len(t) != 4 || t[3] != "enabled" {
		return nil
	}
	name, ok := messages.Untoken(t[2])
	word, confirm, _ := strings.Cut(strings.TrimSpace(string(value)), " ")
	on := strings.EqualFold(word, "true")
	if !ok || !on && !strings.EqualFold(word, "false") {
		n.log.Warn("switch not understood; the value is true or false", "key", key, "value", word)
		return nil
	}
	known := n.opts.Manager.Find(name)
	i := slices.IndexFunc(known, func(s *pipeline.Managed) bool { return s.Kind == messages.Kind(t[1]) })
	if i < 0 {
		n.log.Warn("switch for a stage that this process does not know", "key", key)
		return nil
	}
	s := known[i]
	if s.Enabled() != on {
		if err := pipeline.MaySwitch(s.Stage, name, on, strings.TrimSpace(confirm)); err != nil {
			n.log.Warn("switch not followed: the stage stays on; to turn it off all the same, confirm its name",
				"key", key, "stage", s.Name, "tier", s.Tier, "value", "false "+s.Name)
			return s
		}
	}
	n.switched[s] = true
	n.turn(s, on)
	return s
}

// switchValue is what applySwitch reads. It repeats the confirmation that LocalControl has seen.
func (n *Node) switchValue(s pipeline.SwitchedStage, on bool) []byte {
	if m, ok := n.opts.Manager.Get(s.Type, s.Stage); ok && !on && m.Tier != pipeline.Optional {
		return []byte("false " + s.Stage)
	}
	return fmt.Appendf(nil, "%t", on)
}

// Switch implements pipeline.Control: the switch is a key in the control bucket, and every node follows it.
func (n *Node) Switch(ctx context.Context, name string, on bool, confirm, by string) (pipeline.Switched, error) {
	out, err := pipeline.LocalControl{Manager: n.opts.Manager}.Switch(ctx, name, on, confirm, by)
	if err != nil {
		return out, err
	}
	for _, s := range out.Stages {
		if _, err := n.control.Put(ctx, switchKey(s.Type, s.Stage), n.switchValue(s, on), 0, pipeline.Always()); err != nil {
			return out, messages.NewFault(messages.StoreUnavailable, "the switch of %s is not stored, so only this process "+
				"follows it: %v", s.Stage, err)
		}
	}
	_ = n.nc.Publish(n.subj.Event("switch"), rawjson.Encode(out))
	return out, nil
}

// Stats implements pipeline.Control: the counters of all processes, added up, also of those that are gone.
func (n *Node) Stats(ctx context.Context) (pipeline.Stats, error) {
	reports, err := n.gather(ctx)
	if err != nil {
		return pipeline.Stats{}, messages.NewFault(messages.StoreUnavailable, "the processes cannot be asked: %v", jet.Said(err))
	}
	return n.sum(n.all(ctx, reports)), nil
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
		Diagnostics: pipeline.NewDiagnostics(n.sum(n.all(ctx, reports)), n.opts.Manager.Stages("")),
		Processes:   reports, StagesWithoutWork: []string{},
	}
	for _, s := range n.opts.Manager.Stages("") {
		id := string(s.Kind) + "/" + s.Name
		if s.Enabled() && !slices.ContainsFunc(reports, func(r nodeReport) bool { return slices.Contains(r.Hosts, id) }) {
			d.StagesWithoutWork = append(d.StagesWithoutWork, id)
		}
	}
	d.Queues = n.queues(ctx)
	if s, err := n.js.Stream(ctx, jet.DeadStream); err == nil {
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

func (n *Node) queues(ctx context.Context) []queue {
	out := []queue{}
	s, err := n.js.Stream(ctx, jet.CallsStream)
	if err != nil {
		return out
	}
	for c := range s.ListConsumers(ctx).Info() {
		out = append(out, queue{jet.CallsStream, c.Name, c.NumPending, c.NumAckPending, c.Config.MaxAckPending, c.NumWaiting})
	}
	return out
}

// serveControl follows the switches, answers whoever gathers reports, and is a micro service.
func (n *Node) serveControl() error {
	if err := n.watchSwitches(n.loop); err != nil {
		return err
	}
	if err := n.serveReport(); err != nil {
		return err
	}
	return n.serveMicro()
}
