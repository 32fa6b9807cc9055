package bus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

var _ pipeline.Control = (*Node)(nil)

// switches are the stages that operators have turned on and off. Only the loop that follows the keys uses set.
type switches struct {
	bucket  *jet.Bucket
	manager *pipeline.Manager
	nc      *nats.Conn
	subj    messages.Subjects
	log     *slog.Logger
	set     map[*pipeline.Managed]bool // those that a key switches
}

// switchKey is the key of a stage's switch in the control bucket: stage.<kind>.<name>.enabled, value true or false. The
// name is the stage's own or its class; of two keys for one stage the later wins. A mandatory or fixed stage is turned
// off by "false <name>" only. Without a key a stage is as the configuration says.
func switchKey(kind messages.Kind, stage string) string {
	return "stage." + string(kind) + "." + messages.Token(stage) + ".enabled"
}

// keep applies the switches in the control bucket as they change, until ctx ends, so that "nats kv put" works as well
// as the API. A watch can die in a reconnect, so everything is read again every 30 s.
func (s *switches) keep(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("watch of the switches ended; it begins again", "err", err)
			_ = wait(ctx, time.Second)
		}
	}
}

// read applies all switches as they are now.
func (s *switches) read(ctx context.Context) error {
	keys, err := s.bucket.Keys(ctx, "stage.")
	if err != nil {
		return err
	}
	type set struct {
		key string
		pipeline.StoreEntry
	}
	var all []set
	for _, k := range keys {
		if e, err := s.bucket.Get(ctx, k); err == nil {
			all = append(all, set{k, e})
		}
	}
	slices.SortFunc(all, func(a, b set) int { return cmp.Compare(a.Revision, b.Revision) })
	there := map[*pipeline.Managed]bool{}
	for _, e := range all {
		there[s.apply(e.key, e.Value)] = true
	}
	for m := range s.set {
		if !there[m] {
			delete(s.set, m)
			s.turn(m, m.Default())
		}
	}
	return nil
}

// turn turns a stage on or off in this process.
func (s *switches) turn(m *pipeline.Managed, on bool) {
	if m.Enabled() != on {
		s.log.Info("stage switched", "kind", m.Kind, "stage", m.Name, "enabled", on)
		s.manager.Switch(m.Kind, m.Name, on)
	}
}

func (s *switches) follow(ctx context.Context) error {
	w, err := s.bucket.Watch(ctx, "stage.>")
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
				s.apply(e.Key(), e.Value())
			default: // deleted: another key may still switch the stage
				if err := s.read(ctx); err != nil {
					return err
				}
			}
		case <-again.C:
			if err := s.read(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply follows a key, and returns the stage that it is for; nil if it is for none.
func (s *switches) apply(key string, value []byte) *pipeline.Managed {
	t := strings.Split(key, ".")
	if len(t) != 4 || t[3] != "enabled" {
		return nil
	}
	name, ok := messages.Untoken(t[2])
	word, confirm, _ := strings.Cut(strings.TrimSpace(string(value)), " ")
	on := strings.EqualFold(word, "true")
	if !ok || !on && !strings.EqualFold(word, "false") {
		s.log.Warn("switch not understood; the value is true or false", "key", key, "value", word)
		return nil
	}
	known := s.manager.Find(name)
	i := slices.IndexFunc(known, func(m *pipeline.Managed) bool { return m.Kind == messages.Kind(t[1]) })
	if i < 0 {
		s.log.Warn("switch for a stage that this process does not know", "key", key)
		return nil
	}
	m := known[i]
	if m.Enabled() != on {
		if err := pipeline.MaySwitch(m.Stage, name, on, strings.TrimSpace(confirm)); err != nil {
			s.log.Warn("switch not followed: the stage stays on; to turn it off all the same, confirm its name",
				"key", key, "stage", m.Name, "tier", m.Tier, "value", "false "+m.Name)
			return m
		}
	}
	s.set[m] = true
	s.turn(m, on)
	return m
}

// value is what apply reads. It repeats the confirmation that LocalControl has seen.
func (s *switches) value(of pipeline.SwitchedStage, on bool) []byte {
	if m, ok := s.manager.Get(of.Type, of.Stage); ok && !on && m.Tier != pipeline.Optional {
		return []byte("false " + of.Stage)
	}
	return fmt.Appendf(nil, "%t", on)
}

// Switch implements pipeline.Control: the switch is a key in the control bucket, and every node follows it.
func (s *switches) Switch(ctx context.Context, name string, on bool, confirm, by string) (pipeline.Switched, error) {
	out, err := pipeline.LocalControl{Manager: s.manager}.Switch(ctx, name, on, confirm, by)
	if err != nil {
		return out, err
	}
	for _, m := range out.Stages {
		if _, err := s.bucket.Put(ctx, switchKey(m.Type, m.Stage), s.value(m, on), 0, pipeline.Always()); err != nil {
			return out, messages.NewFault(messages.StoreUnavailable, "the switch of %s is not stored, so only this process "+
				"follows it: %v", m.Stage, err)
		}
	}
	_ = s.nc.Publish(s.subj.Event("switch"), rawjson.Encode(out))
	return out, nil
}

// serveControl follows the switches, answers whoever gathers reports, and is a micro service.
func (n *Node) serveControl() error {
	if err := n.switches.read(n.loop); err != nil {
		return fmt.Errorf("bus: switches: %w", err)
	}
	n.loops.Go(func() { n.keep(n.loop) })
	if err := n.reports.serve(); err != nil {
		return err
	}
	return n.services.serve()
}
