package bus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

var defaultMaxTime = map[messages.Kind]time.Duration{
	messages.Model: 10 * time.Minute, messages.Tool: time.Minute, messages.Agent: time.Hour,
}

// newCall makes the call of a request, with its deadline, its trace and its slip. Nothing of it is stored.
func (n *Node) newCall(r pipeline.Request) (*messages.Call, error) {
	if n.opts.Validate != nil {
		if err := n.opts.Validate(r.Kind, r.Body); err != nil {
			return nil, messages.AsFault(err, "entry")
		}
	}
	c := n.factsOf(r)
	if c.Past(time.Now()) {
		return nil, messages.NewFault(messages.DeadlineExceeded, "the deadline %s is over already",
			c.Deadline.Format(time.RFC3339)).From("entry")
	}
	if err := n.route(c, r); err != nil {
		return nil, messages.AsFault(err, "entry")
	}
	if n.opts.Prepare != nil {
		if err := n.opts.Prepare(c); err != nil {
			return nil, messages.AsFault(err, "entry")
		}
	}
	return c, nil
}

func (n *Node) factsOf(r pipeline.Request) *messages.Call {
	if r.Tenant == "" {
		r.Tenant = "default"
	}
	c := messages.NewCall(r.Kind, r.Tenant, r.Body)
	c.Wire = r.Wire
	c.Role, c.Session, c.Run, c.User, c.Agent, c.Tool = r.Role, r.Session, r.Run, r.User, r.Agent, r.Tool
	c.RequestID, c.IdempotencyKey, c.Parent, c.Skip = r.RequestID, r.IdempotencyKey, r.Parent, r.Skip
	c.Models, c.Cache, c.Explain, c.Stream, c.Trace = r.Models, r.Cache, r.Explain, r.Stream, r.Trace
	c.Notes = maps.Clone(r.Notes)
	c.Return.Record = r.Submit || r.Keep
	if !r.Submit {
		c.Return.Caller = r.CallerInbox
	}
	if c.RequestID == "" {
		c.RequestID = c.ID
	}
	switch {
	case c.Trace.Parent != "":
	case n.opts.Root != nil:
		c.Trace = n.opts.Root(c.Kind)
	default:
		c.Trace.Parent = newTrace()
	}
	c.Deadline = c.Accepted.Add(n.maxTime(r))
	if !r.Deadline.IsZero() && r.Deadline.Before(c.Deadline) {
		c.Deadline = r.Deadline.UTC()
	}
	if c.IdempotencyKey != "" {
		c.Fingerprint = fingerprint(c)
	}
	return c
}

// route gives the call its slip.
func (n *Node) route(c *messages.Call, r pipeline.Request) (err error) {
	route := pipeline.Route{Kind: r.Kind, Apply: applyClass(c), Only: r.Only, Skip: r.Skip}
	if n.opts.ToolStages != nil {
		if route.ToolStages, err = n.opts.ToolStages(c); err != nil {
			return err
		}
	}
	c.Slip, err = n.opts.Manager.Build(route)
	return err
}

// newTrace is a new root, not sampled: whoever traces decides.
func newTrace() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	out := make([]byte, 0, 55)
	out = hex.AppendEncode(append(out, "00-"...), b[:16])
	out = hex.AppendEncode(append(out, '-'), b[16:])
	return string(append(out, "-00"...))
}

// maxTime is the longest that the call of a request may take.
func (n *Node) maxTime(r pipeline.Request) time.Duration {
	most := n.opts.MaxTime[r.Kind]
	if most <= 0 {
		most = defaultMaxTime[r.Kind]
	}
	if n.opts.Longest != nil {
		most = max(most, n.opts.Longest(r))
	}
	return max(most, r.MaxTime)
}

func applyClass(c *messages.Call) string {
	switch {
	case c.Kind != messages.Model:
		return ""
	case c.Run != "":
		return pipeline.ApplyAgent
	case c.Session != "":
		return pipeline.ApplySession
	}
	return pipeline.ApplyBare
}

// fingerprint is the hash by which two requests under one key are told apart. Its parts are prefixed with their
// lengths, so that no two requests share one. One body can be a request of two wires, whose answers differ; that of
// chat is left out, so that keys of older builds go on.
func fingerprint(c *messages.Call) string {
	h := sha256.New()
	parts := [][]byte{[]byte(c.Kind), []byte(c.Tool), []byte(c.Agent), []byte(c.Session), c.Request()}
	if w := c.Wire.Or(); w != messages.ChatWire {
		parts = append(parts, []byte(w))
	}
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// noParent is the parent of a call that a stage makes and that belongs to no other.
const noParent = "none"

// Call implements pipeline.Caller for stages and agents that need a whole call of their own: a child of the call whose
// phase asks for it. It has a slip of its own and is bound to this process; nothing of it is stored, whatever key it
// has, because its stage remembers what must not be done again. It ends with ctx, its parent's time, at the latest.
func (n *Node) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	parent := c.Parent
	if parent == "" {
		parent = noParent
	}
	body := c.Request()
	if text, ok := c.RequestText(); ok {
		body = []byte(text)
	}
	deadline := c.Deadline
	if until, ok := ctx.Deadline(); ok && (deadline.IsZero() || until.Before(deadline)) {
		deadline = until
	}
	p, err := n.Accept(ctx, pipeline.Request{
		Wire: c.Wire, Kind: c.Kind, Tool: c.Tool, Body: body, Tenant: c.Tenant, Role: c.Role, Models: c.Models,
		Session: c.Session, Run: c.Run,
		User: c.User, Agent: c.Agent, RequestID: c.RequestID, Deadline: deadline,
		Skip: c.Skip, Parent: parent, Cache: c.Cache, Stream: c.Stream, Trace: c.Trace,
	})
	if err != nil {
		return nil, err
	}
	end, err := p.Wait(ctx, nil)
	if err != nil {
		p.Leave()
	}
	pipeline.Charge(ctx, end)
	return end, err
}
