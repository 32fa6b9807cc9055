package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Readiness knows what this process needs to serve.
type Readiness struct {
	node    *bus.Node
	js      jetstream.JetStream
	manager *pipeline.Manager
	classes bus.Config // of models and tools
	audit   *audit
	denied  *denials
	server  *embed.Server // nil: it is elsewhere
	url     string
	owns    bool // calls
}

// Checks checks what this process needs to serve: the connection, a store that takes writes, permissions, its audit,
// and, if it owns calls, others that do the work. What is named by a state other than empty does not make it unready.
func (r *Readiness) Checks(ctx context.Context) []api.Check {
	conn := r.js.Conn()
	nc := api.Check{Name: "nats", OK: conn.IsConnected()}
	if !nc.OK {
		nc.Reason = fmt.Sprintf("the connection to %s is %s", r.url, conn.Status())
	}
	health := r.node.Health()
	store := api.Check{Name: "jetstream", OK: health.Stored == nil}
	switch {
	case r.server != nil && r.server.Stuck(): // it knows before a mark is missing
		store.OK, store.Reason = false, "the embedded server cannot write to its data directory"
	case !store.OK:
		store.Reason = health.Stored.Error()
	}
	out := []api.Check{nc, store, r.denied.check()}
	switch {
	case !r.owns: // whom it would ask is of no matter
	case nc.OK:
		out = append(out, r.queueRoom(ctx), r.stagesServed(health), r.targetsServed(health))
	default:
		for _, name := range []string{"queue", "stages", "targets"} {
			out = append(out, api.Check{Name: name, OK: true, State: api.Unknown, Reason: "there is no connection to NATS"})
		}
	}
	out = append(out, r.audit.check())
	if health.Draining {
		out = append(out, api.Check{Name: "process", Reason: "it is stopping"})
	}
	return out
}

// stagesServed fails if nobody serves a mandatory stage that is on.
func (r *Readiness) stagesServed(health bus.Health) api.Check {
	var must, may []string
	for _, s := range r.manager.Stages("") {
		if !s.Enabled() || s.Before == nil && s.After == nil || health.Groups[r.node.Group(string(s.Kind), s.Name)] > 0 {
			continue
		}
		name := string(s.Kind) + "/" + s.Name
		if s.Tier == pipeline.Mandatory {
			must = append(must, name)
		} else {
			may = append(may, name)
		}
	}
	slices.Sort(must)
	slices.Sort(may)
	c := api.Check{Name: "stages", OK: len(must) == 0}
	switch {
	case !c.OK:
		c.Reason = "no process serves " + strings.Join(must, ", ") + ", which no call may leave out"
	case len(may) > 0:
		c.State, c.Reason = api.Degraded, "no process serves "+strings.Join(may, ", ")
	}
	return c
}

// targetsServed names providers and executors that nobody serves, and those whose calls wait in line.
func (r *Readiness) targetsServed(health bus.Health) api.Check {
	c := api.Check{Name: "targets", OK: true}
	var why []string
	absent := func(kind messages.Kind, class string) {
		if health.Groups[r.node.Group(string(kind), class)] == 0 {
			why = append(why, fmt.Sprintf("no process serves %s/%s", kind, class))
		}
	}
	for _, class := range r.classes.ModelClasses {
		absent(messages.Model, class)
	}
	for _, class := range r.classes.ToolClasses {
		absent(messages.Tool, class)
	}
	for _, l := range r.node.Capacity() {
		if l.Waiting > 0 {
			why = append(why, fmt.Sprintf("%s/%s is full: %d calls of this process wait", l.Kind, l.Class, l.Waiting))
		}
	}
	if len(why) > 0 {
		c.State, c.Reason = api.Degraded, strings.Join(why, "; ")
	}
	return c
}

// queueRoom names a full work queue: calls that are stored are refused, others are served.
func (r *Readiness) queueRoom(ctx context.Context) api.Check {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c := api.Check{Name: "queue", OK: true}
	s, err := r.js.Stream(ctx, jet.CallsStream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		c.OK, c.Reason = false, "the stream "+jet.CallsStream+" is gone"
	case err != nil:
		c.State, c.Reason = api.Unknown, err.Error()
	default:
		i := s.CachedInfo()
		if most := i.Config.MaxMsgs; most > 0 && i.State.Msgs >= uint64(most) ||
			i.Config.MaxBytes > 0 && i.State.Bytes >= uint64(i.Config.MaxBytes) {
			c.State, c.Reason = api.Degraded, fmt.Sprintf("%s is full: %d calls wait in it", jet.CallsStream, i.State.Msgs)
		}
	}
	return c
}

// denials remember what the server does not let this process do.
type denials struct {
	nc   *nats.Conn
	root string
	mu   sync.Mutex
	at   map[string]denial // by what was denied
}

type denial struct {
	when       time.Time
	listening  bool
	reconnects uint64
}

// deniedFor is how long a publish that was refused counts: nobody tries it only to see.
const deniedFor = time.Minute

// watch hears of refusals from now on, before whoever heard of errors until now.
func (d *denials) watch(nc *nats.Conn, root string) {
	d.nc, d.root, d.at = nc, cmp.Or(root, "shallot"), map[string]denial{}
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			d.note(err.Error())
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
}

// note remembers a refusal. Publishing counts on our own subjects only: a caller may ask for an answer anywhere, and
// the subjects of tools are their own.
func (d *denials) note(text string) {
	_, what, _ := strings.Cut(text, ": ")
	lower := strings.ToLower(text)
	listening := strings.Contains(lower, "subscription to")
	ours := slices.ContainsFunc([]string{d.root + ".", "$js.", "$kv.", "$o."}, func(p string) bool {
		return strings.Contains(lower, `"`+strings.ToLower(p))
	})
	if !listening && !ours {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.at) < 100 {
		d.at[cmp.Or(what, text)] = denial{when: time.Now(), listening: listening, reconnects: d.nc.Stats().Reconnects}
	}
}

func (d *denials) check() api.Check {
	c := api.Check{Name: "permissions", OK: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	var what []string
	for text, one := range d.at {
		if one.listening && one.reconnects == d.nc.Stats().Reconnects || !one.listening && time.Since(one.when) < deniedFor {
			what = append(what, text)
		} else {
			delete(d.at, text)
		}
	}
	if slices.Sort(what); len(what) > 0 {
		c.OK, c.Reason = false, "the NATS server refuses "+strings.Join(what, "; ")
	}
	return c
}
