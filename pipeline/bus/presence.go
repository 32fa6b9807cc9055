package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// presence keeps the marks of this process and follows those of all others.
type presence struct {
	n       *Node
	owned   jetstream.KeyValue // marks of owners
	served  jetstream.KeyValue // marks of members
	again   chan struct{}      // one slot: refresh now
	mark    []byte
	serving bool

	mu     sync.Mutex
	marks  map[string]*marks
	last   time.Time // when the own marks were stored
	failed error     // what became of it the last time
}

// marks are those of one process.
type marks struct {
	owner, member bool
	groups        []string
}

// mark is what a process says of itself.
type mark struct {
	Host    string    `json:"host"`
	Pid     int       `json:"pid"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Entry   bool      `json:"entry,omitempty"`
	Groups  []string  `json:"groups,omitempty"` // <kind>.<stage or class>
}

const (
	markEvery = 3 * time.Second
)

func newPresence(ctx context.Context, n *Node) (*presence, error) {
	p := &presence{n: n, again: make(chan struct{}, 1), marks: map[string]*marks{}}
	var err error
	if p.owned, err = n.js.KeyValue(ctx, jet.OwnersBucket); err == nil {
		p.served, err = n.js.KeyValue(ctx, jet.MembersBucket)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: marks of processes: %w; run the provisioning step first", err)
	}
	host, _ := os.Hostname()
	groups := n.member.groups()
	slices.Sort(groups)
	p.serving = len(groups) > 0
	p.mark = rawjson.Encode(mark{Host: host, Pid: os.Getpid(), Version: n.opts.Version, Since: time.Now().UTC(),
		Entry: n.opts.Entry, Groups: groups})
	return p, nil
}

// start leaves the own marks, and reads those that are there.
func (p *presence) start(ctx context.Context) error {
	if err := p.refresh(ctx); err != nil {
		return fmt.Errorf("bus: the mark of this process: %w", err)
	}
	ready := make(chan error, 2)
	p.n.loops.Go(func() { p.follow(p.n.loop, p.owned, p.ownerMark, ready) })
	p.n.loops.Go(func() { p.follow(p.n.loop, p.served, p.memberMark, ready) })
	p.n.loops.Go(func() { p.keep(p.n.loop) })
	for range 2 {
		select {
		case err := <-ready:
			if err != nil {
				return fmt.Errorf("bus: marks of processes: %w", err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// names are the processes that have a mark.
func (p *presence) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.marks))
}

// refresh stores the marks anew. They end by themselves if nobody does.
func (p *presence) refresh(ctx context.Context) error {
	err := p.store(ctx)
	p.noted(err)
	return err
}

func (p *presence) store(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	put := func(bucket string) error {
		m := &nats.Msg{Subject: "$KV." + bucket + "." + p.n.opts.Name, Data: p.mark}
		_, err := p.n.js.PublishMsg(ctx, m, jetstream.WithMsgTTL(p.n.cfg.MarkTTL), jetstream.WithRetryAttempts(1))
		return err
	}
	if p.serving {
		if err := put(jet.MembersBucket); err != nil {
			return err
		}
	}
	if err := put(jet.OwnersBucket); err != nil {
		return err
	}
	refreshed := func(pr *protocol.Presence) event {
		return func(now time.Duration, out []protocol.Effect) []protocol.Effect { pr.Refreshed(now); return out }
	}
	p.n.owner.do(refreshed(p.n.owns.Presence))
	p.n.member.do(refreshed(p.n.member.m.Presence))
	return nil
}

func (p *presence) keep(ctx context.Context) {
	t := time.NewTicker(markEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-p.again:
		case <-ctx.Done():
			return
		}
		if err := p.refresh(ctx); err != nil && ctx.Err() == nil {
			p.n.log.Debug("the mark of this process was not refreshed", "err", err)
		}
	}
}

// reconnected has the marks refreshed at once: an outage takes those of all.
func (p *presence) reconnected() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// leave takes the own marks away, so that others need not wait until they end.
func (p *presence) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for _, kv := range []jetstream.KeyValue{p.served, p.owned} {
		if err := kv.Delete(ctx, p.n.opts.Name); err != nil {
			p.n.log.Debug("the mark of this process was not deleted; it ends by itself", "err", err)
		}
	}
}

// follow watches a bucket of marks until ctx ends. ready gets one value, when the marks that were there have been read.
func (p *presence) follow(ctx context.Context, kv jetstream.KeyValue, seen func(name string, m *mark, deleted bool),
	ready chan<- error) {
	first := true
	for ctx.Err() == nil {
		w, err := kv.Watch(ctx, ">")
		if err == nil {
			p.watch(ctx, w, seen, func() {
				if first {
					ready <- nil
				}
				first = false
			})
			_ = w.Stop()
			err = errWatchEnded
		}
		if first {
			ready <- err
			return
		}
		p.n.log.Debug("the watch of the marks ended; it begins again", "err", err)
		_ = wait(ctx, time.Second)
	}
}

var errWatchEnded = fmt.Errorf("the watch ended")

func (p *presence) watch(ctx context.Context, w jetstream.KeyWatcher, seen func(name string, m *mark, deleted bool),
	current func()) {
	for {
		select {
		case e, open := <-w.Updates():
			switch {
			case !open:
				return
			case e == nil:
				current()
			case e.Operation() == jetstream.KeyValuePut:
				var m mark
				if json.Unmarshal(e.Value(), &m) == nil {
					seen(e.Key(), &m, false)
				}
			default: // a purge is the server's, when the mark has ended by itself
				seen(e.Key(), nil, e.Operation() == jetstream.KeyValueDelete)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *presence) ownerMark(name string, m *mark, deleted bool) {
	p.seen(name, deleted, func(have *marks) { have.owner = m != nil })
	p.n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		if m == nil {
			p.n.member.m.Presence.Unmarked(now, name, deleted)
			return out
		}
		out, _ = p.n.member.m.Presence.Marked(now, name, nil, out)
		return out
	})
}

func (p *presence) memberMark(name string, m *mark, deleted bool) {
	p.seen(name, deleted, func(have *marks) {
		switch have.member = m != nil; {
		case m != nil:
			have.groups = m.Groups
		case deleted:
			have.groups = nil // else it may stand still, and be subscribed all the same
		}
	})
}

// seen tells the owner's machine: a process is marked while it has one mark.
func (p *presence) seen(name string, deleted bool, change func(have *marks)) {
	p.mu.Lock()
	defer p.mu.Unlock() // held over the event, so that two changes of one process keep their order
	have := p.marks[name]
	if have == nil {
		have = &marks{}
		p.marks[name] = have
	}
	change(have)
	marked, groups := have.owner || have.member, have.groups
	if !marked {
		delete(p.marks, name)
	}
	p.n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		if marked {
			out = p.n.owns.Marked(now, name, groups, out)
		} else {
			p.n.owns.Unmarked(now, name, deleted)
		}
		p.n.onion.hops.changed()
		return out
	})
}

// owners counts the processes that run calls, this one included.
func (p *presence) owners() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, m := range p.marks {
		if m.owner {
			n++
		}
	}
	return max(n, 1)
}

// hearProcess takes what is said to this process by name.
func (n *Node) hearProcess() error {
	subject := n.subj.Process(n.opts.Name, "*")
	_, err := n.subs.hear(subject, func(m *nats.Msg) {
		verb := last(m.Subject)
		if verb == dropVerb {
			if owner, k, ok := n.member.learn(m.Reply); ok {
				n.member.drop(question{owner, k})
			}
			return
		}
		if verb == saidVerb {
			n.member.askedSaid(m)
			return
		}
		if verb != "ping" {
			n.member.heard(verb, m)
			return
		}
		if strings.HasPrefix(m.Reply, n.replyRoot) {
			n.publish(m.Reply+"."+n.opts.Name, "", strconv.AppendInt(nil, int64(n.clock.now()), 10))
		}
	})
	return err
}
