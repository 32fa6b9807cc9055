package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// toolMetadata is the key of a micro endpoint's metadata that makes the endpoint a tool: its value is the definition.
const toolMetadata = "shallot.tool"

const (
	discoverEvery = 3 * time.Second
	discoverWait  = time.Second // services that are here answer at once
	discoverLease = 10 * time.Second
	discoverMost  = 4096 // answers of one poll; more are another installation's, or an attack
)

// advertised is what an endpoint says about its tool. The policy is a hint: it is believed as far as
// tool.policy.discovered says.
type advertised struct {
	Name         string    `json:"name"`
	Description  string    `json:"description"`
	InputSchema  tool.JSON `json:"input-schema"`
	OutputSchema tool.JSON `json:"output-schema"`
	Policy       struct {
		Effect     string `json:"effect"`
		Idempotent *bool  `json:"idempotent"`
	} `json:"policy"`
}

// definition reads an endpoint's metadata. Keys that we do not know are left alone: a newer service may say more.
func definition(subject, meta string) (tool.Definition, error) {
	var a advertised
	d := tool.Definition{Source: tool.Discovered, Executor: tool.Executor{Kind: tool.ExecNATS, Name: subject}}
	if err := json.Unmarshal([]byte(meta), &a); err != nil {
		return d, fmt.Errorf("its metadata %s is no tool definition: %w", toolMetadata, err)
	}
	d.Name, d.Description, d.InputSchema, d.OutputSchema = a.Name, a.Description, a.InputSchema, a.OutputSchema
	if a.Policy.Effect != "" || a.Policy.Idempotent != nil {
		read := a.Policy.Effect == tool.EffectRead
		d.Annotations = &tool.Annotations{ReadOnly: &read, Idempotent: a.Policy.Idempotent}
	}
	return d, nil
}

// discoverer registers the tools of micro services. One process of an installation does it at a time: the one that
// holds the lease.
type discoverer struct {
	h     *Host
	lease pipeline.Store
	me    string
	rev   uint64
	known map[string]seen   // by subject: what has been registered
	said  map[string]string // subject -> the last complaint, so that each is logged once
}

// seen is an endpoint's metadata and the name of its tool.
type seen struct{ meta, tool string }

func (h *Host) discoverTools(ctx context.Context, lease pipeline.Store) {
	d := &discoverer{h: h, lease: lease, me: nuid.Next(), known: map[string]seen{}, said: map[string]string{}}
	t := time.NewTicker(discoverEvery)
	defer t.Stop()
	for {
		if d.holds(ctx) {
			d.poll(ctx)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			d.leave()
			return
		}
	}
}

// leaseKey is held by the process that polls.
const leaseKey = "tools.discovery"

// holds takes or renews the lease. What cannot be known counts as not held.
func (d *discoverer) holds(ctx context.Context) bool {
	try, cancel := context.WithTimeout(ctx, discoverEvery)
	defer cancel()
	when := pipeline.IfRevision(d.rev)
	if d.rev == 0 {
		when = pipeline.IfAbsent()
	}
	rev, err := d.lease.Put(try, leaseKey, []byte(d.me), discoverLease, when)
	if err != nil {
		d.rev = 0
		if !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) && ctx.Err() == nil {
			d.h.log.Debug("tool discovery: the lease cannot be renewed", "err", err)
		}
		if e, err := d.lease.Get(try, leaseKey); err == nil && string(e.Value) == d.me {
			d.rev = e.Revision // ours: the answer to an earlier write was lost
		}
		return false
	}
	d.rev = rev
	return true
}

func (d *discoverer) leave() {
	if d.rev == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.lease.Delete(ctx, leaseKey) // else it ends by itself
}

// poll asks all services who they are and registers the tools among them.
func (d *discoverer) poll(ctx context.Context) {
	inbox := d.h.Conn.NewInbox()
	sub, err := d.h.Conn.SubscribeSync(inbox)
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := d.h.Conn.PublishRequest(micro.APIPrefix+"."+micro.InfoVerb.String(), inbox, nil); err != nil {
		return
	}
	limit, cancel := context.WithTimeout(ctx, discoverWait)
	defer cancel()
	for range discoverMost {
		m, err := sub.NextMsgWithContext(limit)
		if err != nil {
			return // the time is over, or nobody is there
		}
		d.read(ctx, m)
	}
}

func (d *discoverer) read(ctx context.Context, m *nats.Msg) {
	if !bytes.Contains(m.Data, []byte(toolMetadata)) {
		return
	}
	var info micro.Info
	if json.Unmarshal(m.Data, &info) != nil {
		return
	}
	for _, e := range info.Endpoints {
		if meta := e.Metadata[toolMetadata]; meta != "" && !d.has(ctx, e.Subject, meta) {
			d.complain(e.Subject, info.Name, d.register(ctx, e.Subject, meta))
		}
	}
}

// has reports whether that was registered, and is still there: a tool that an operator removed comes back held.
func (d *discoverer) has(ctx context.Context, subject, meta string) bool {
	old := d.known[subject]
	if old.meta != meta {
		return false
	}
	_, err := d.h.tools.registry.Get(ctx, old.tool)
	return err == nil || messages.AsFault(err, "registry").Code != messages.ToolNotFound
}

func (d *discoverer) register(ctx context.Context, subject, meta string) error {
	def, err := definition(subject, meta)
	if err != nil {
		return err
	}
	if f := d.h.reachable(&def); f != nil {
		return f
	}
	stored, err := d.h.tools.registry.Register(ctx, def)
	if err != nil {
		return err
	}
	if len(d.known) > discoverMost {
		clear(d.known)
	}
	d.known[subject] = seen{meta, def.Name}
	if stored.Held != "" {
		d.h.toolEvent(ctx, "held", stored, "discovery")
		return nil
	}
	d.h.toolEvent(ctx, "discovered", stored, "discovery")
	return nil
}

// complain logs why a service's tool is not offered, once for each reason.
func (d *discoverer) complain(subject, service string, err error) {
	if err == nil {
		delete(d.said, subject)
		return
	}
	text := messages.AsFault(err, "registry").Message
	if d.said[subject] == text {
		return
	}
	if len(d.said) > discoverMost {
		clear(d.said)
	}
	d.said[subject] = text
	d.h.log.Warn("a micro service's tool is not offered", "service", service, "subject", subject, "reason", text)
}
