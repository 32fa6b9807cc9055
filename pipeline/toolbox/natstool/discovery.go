package natstool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	discoverEvery = 10 * time.Second
	leaseTime     = 3 * time.Second // in which the store must answer
	discoverWait  = time.Second     // services that are here answer at once
	discoverLease = 30 * time.Second
	maxServices   = 4096 // answers of one poll; more come from another installation or an attack
)

// advertised is what an endpoint says about its tool. The setting tool.policy.discovered decides how much of its policy
// is believed.
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

// definition reads an endpoint's metadata. Unknown keys are ignored, because a newer service may write more.
func definition(subject, meta string) (tool.Definition, error) {
	var a advertised
	d := tool.Definition{Source: tool.Discovered, Executor: tool.Executor{Kind: tool.ExecNATS, Name: subject}}
	if err := json.Unmarshal([]byte(meta), &a); err != nil {
		return d, fmt.Errorf("its metadata %s is not a tool definition: %w", toolMetadata, err)
	}
	d.Name, d.Description, d.InputSchema, d.OutputSchema = a.Name, a.Description, a.InputSchema, a.OutputSchema
	if a.Policy.Effect != "" || a.Policy.Idempotent != nil {
		read := a.Policy.Effect == tool.EffectRead
		d.Annotations = &tool.Annotations{ReadOnly: &read, Idempotent: a.Policy.Idempotent}
	}
	return d, nil
}

// Discovery registers the tools of micro services. Only one process of an installation does so at a time, the one that
// holds the lease.
type Discovery struct {
	Conn     *nats.Conn
	Registry Registry
	Lease    pipeline.Store
	// Check refuses a definition that must not be reached; nil means that it is good.
	Check func(d *tool.Definition) *messages.Fault
	// Event is called after a tool was registered; what is "discovered" or "held".
	Event func(ctx context.Context, what string, d *tool.Definition)
	Log   *slog.Logger

	me    string
	rev   uint64
	known map[string]seen   // by subject: what was registered
	said  map[string]string // by subject: the last complaint, so that each is logged once
}

// Registry is where discovered tools go; a tool.Registry is one.
type Registry interface {
	Register(ctx context.Context, d tool.Definition) (*tool.Definition, error)
	Get(ctx context.Context, name string) (*tool.Definition, error)
}

// seen is an endpoint's metadata and the name of its tool.
type seen struct{ meta, tool string }

// Run looks for tools until ctx ends and then releases the lease. It is called once.
func (d *Discovery) Run(ctx context.Context) {
	d.me, d.known, d.said = nuid.Next(), map[string]seen{}, map[string]string{}
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

// holds takes or renews the lease. If the store does not answer, the lease counts as not held.
func (d *Discovery) holds(ctx context.Context) bool {
	try, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	when := pipeline.IfRevision(d.rev)
	if d.rev == 0 {
		when = pipeline.IfAbsent()
	}
	rev, err := d.Lease.Put(try, leaseKey, []byte(d.me), discoverLease, when)
	if err != nil {
		d.rev = 0
		if !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) && ctx.Err() == nil {
			d.Log.Debug("tool discovery: the lease cannot be renewed", "err", err)
		}
		if e, err := d.Lease.Get(try, leaseKey); err == nil && string(e.Value) == d.me {
			d.rev = e.Revision // ours: the answer to an earlier write was lost
		}
		return false
	}
	d.rev = rev
	return true
}

func (d *Discovery) leave() {
	if d.rev == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.Lease.Delete(ctx, leaseKey) // else it expires
}

// poll asks all services who they are and registers the tools among them.
func (d *Discovery) poll(ctx context.Context) {
	inbox := d.Conn.NewInbox()
	sub, err := d.Conn.SubscribeSync(inbox)
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := d.Conn.PublishRequest(micro.APIPrefix+"."+micro.InfoVerb.String(), inbox, nil); err != nil {
		return
	}
	limit, cancel := context.WithTimeout(ctx, discoverWait)
	defer cancel()
	for range maxServices {
		m, err := sub.NextMsgWithContext(limit)
		if err != nil {
			return // the time is over, or there are no services
		}
		d.read(ctx, m)
	}
}

func (d *Discovery) read(ctx context.Context, m *nats.Msg) {
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

// has reports whether this was registered and is still there. A tool that an operator removed is registered again, and
// is quarantined then.
func (d *Discovery) has(ctx context.Context, subject, meta string) bool {
	old := d.known[subject]
	if old.meta != meta {
		return false
	}
	_, err := d.Registry.Get(ctx, old.tool)
	return err == nil || messages.AsFault(err, "registry").Code != messages.ToolNotFound
}

func (d *Discovery) register(ctx context.Context, subject, meta string) error {
	def, err := definition(subject, meta)
	if err != nil {
		return err
	}
	if f := d.Check(&def); f != nil {
		return f
	}
	stored, err := d.Registry.Register(ctx, def)
	if err != nil {
		return err
	}
	if len(d.known) > maxServices {
		clear(d.known)
	}
	d.known[subject] = seen{meta, def.Name}
	if stored.Quarantined != "" {
		d.Event(ctx, "held", stored)
		return nil
	}
	d.Event(ctx, "discovered", stored)
	return nil
}

// complain logs why a service's tool is not registered, once for each reason.
func (d *Discovery) complain(subject, service string, err error) {
	if err == nil {
		delete(d.said, subject)
		return
	}
	text := messages.AsFault(err, "registry").Message
	if d.said[subject] == text {
		return
	}
	if len(d.said) > maxServices {
		clear(d.said)
	}
	d.said[subject] = text
	d.Log.Warn("a micro service's tool is not registered", "service", service, "subject", subject, "reason", text)
}
