package bus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

var _ pipeline.Entry = (*Node)(nil)

var defaultMaxTime = map[messages.Kind]time.Duration{
	messages.Model: 10 * time.Minute, messages.Tool: time.Minute, messages.Agent: time.Hour,
}

// Accept implements pipeline.Entry: slip and idempotency record first, then generation 0 is stored, and only its PubAck
// makes the call accepted (contracts 27).
func (n *Node) Accept(ctx context.Context, r pipeline.Request) (pipeline.Pending, error) {
	if n.draining.Load() {
		f := messages.NewFault(messages.Stopping, "this process is stopping; send the request to another one")
		f.Unsent = true
		return nil, f.From("entry")
	}
	c, err := n.newCall(r)
	if err != nil {
		return nil, err
	}
	if c.IdempotencyKey != "" {
		attach, err := n.claimWithin(ctx, c)
		if err != nil {
			return nil, err
		}
		if attach != nil {
			return attach, nil
		}
	}
	return n.enter(ctx, c, r.Parent != "")
}

// storeLimit is how long a call may wait to be stored: with no store in reach, nobody waits longer than he said.
func storeLimit(ctx context.Context, c *messages.Call) (context.Context, context.CancelFunc) {
	until := time.Now().Add(10 * time.Second)
	if c.Deadline.Before(until) {
		until = c.Deadline
	}
	return context.WithDeadline(ctx, until)
}

func (n *Node) claimWithin(ctx context.Context, c *messages.Call) (pipeline.Pending, error) {
	limit, cancel := storeLimit(ctx, c)
	defer cancel()
	return n.claim(limit, c)
}

// enter stores generation 0.
func (n *Node) enter(ctx context.Context, c *messages.Call, nested bool) (*pending, error) {
	p := newPending(n, c)
	if p.attached = c.Return.Inbox == ""; !p.attached {
		n.waiters.put(p)
	}
	limit, cancel := storeLimit(ctx, c)
	defer cancel()
	if c.Return.Record {
		if _, err := n.results.Put(limit, submittedKey(c.Tenant, c.ID), []byte("{}"), 0, pipeline.Always()); err != nil {
			n.waiters.drop(c.ID)
			return nil, messages.NewFault(messages.StoreUnavailable, "the call could not be stored: %v; it was not accepted", err).From("entry")
		}
	}
	m, err := n.codec.encode(limit, c)
	if err == nil {
		m.Subject = n.subj.Entry(c.Kind, nested)
		m.Header[hdrMsgID] = []string{c.ID + ".0"}
		var duplicate bool
		if duplicate, err = n.publishStored(limit, m); duplicate {
			p.pollRecord() // another process may have stored it first, with its own inbox
		}
	}
	if err == nil {
		if c.IdempotencyKey != "" {
			n.claimed(c)
		}
		return p, nil
	}
	n.waiters.drop(c.ID)
	if c.IdempotencyKey != "" {
		_ = n.idempotency.Delete(context.WithoutCancel(ctx), idempotencyKey(c))
	}
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return nil, f.From("entry")
	}
	n.Cancel(c.ID) // it may have been stored although nobody said so
	if c.Past(time.Now()) {
		return nil, messages.NewFault(messages.DeadlineExceeded, "the call's time was over while it waited to be stored: %v; it was not accepted", err).From("entry")
	}
	return nil, messages.NewFault(messages.StoreUnavailable, "the call could not be stored: %v; it was not accepted", err).From("entry")
}

// newCall makes the call of a request: deadline, slip, trace and return address.
func (n *Node) newCall(r pipeline.Request) (*messages.Call, error) {
	if n.opts.Validate != nil {
		if err := n.opts.Validate(r.Kind, r.Body); err != nil {
			return nil, messages.AsFault(err, "entry")
		}
	}
	if r.Tenant == "" {
		r.Tenant = "default"
	}
	c := messages.NewCall(r.Kind, r.Tenant, r.Body)
	c.Wire = r.Wire
	c.Role, c.Session, c.Run, c.User, c.Agent, c.Tool = r.Role, r.Session, r.Run, r.User, r.Agent, r.Tool
	c.Models = r.Models
	c.RequestID, c.IdempotencyKey, c.Parent, c.Skip = r.RequestID, r.IdempotencyKey, r.Parent, r.Skip
	c.Cache, c.Explain, c.Stream, c.Trace = r.Cache, r.Explain, r.Stream, r.Trace
	c.Notes = maps.Clone(r.Notes)
	if c.RequestID == "" {
		c.RequestID = c.ID
	}
	c.Deadline = c.Accepted.Add(n.maxTime(r))
	if !r.Deadline.IsZero() && r.Deadline.Before(c.Deadline) {
		c.Deadline = r.Deadline.UTC()
	}
	if c.Past(time.Now()) {
		return nil, messages.NewFault(messages.DeadlineExceeded, "the deadline %s is over already", c.Deadline.Format(time.RFC3339)).From("entry")
	}
	c.Return.Inbox = n.inbox + ".c." + c.ID
	c.Return.Caller = r.CallerInbox
	if r.Submit {
		c.Return.Inbox, c.Return.Caller = "", ""
	}
	c.Return.Record = r.Submit || r.Keep || c.IdempotencyKey != ""
	if c.Trace.Parent == "" {
		c.Trace.Parent = newTrace()
	}
	c.Fingerprint = fingerprint(c)
	route := pipeline.Route{Kind: r.Kind, Apply: applyClass(c), Only: r.Only, Skip: r.Skip}
	var err error
	if n.opts.ToolStages != nil {
		route.ToolStages, err = n.opts.ToolStages(c)
	}
	if err == nil {
		c.Slip, err = n.opts.Manager.Build(route)
	}
	if err != nil {
		return nil, messages.AsFault(err, "entry")
	}
	if n.opts.Prepare != nil {
		if err := n.opts.Prepare(c); err != nil {
			return nil, messages.AsFault(err, "entry")
		}
	}
	return c, nil
}

// newTrace is a new root, not sampled: whoever traces decides (contracts T3).
func newTrace() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-00"
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

// fingerprint is the hash by which two bodies under one key are told apart. Its parts are prefixed with their lengths,
// so that no two requests share one.
func fingerprint(c *messages.Call) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(c.Kind), []byte(c.Tool), []byte(c.Agent), []byte(c.Session), c.Request()} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// claimRecord is what an idempotency key means.
type claimRecord struct {
	Call        string    `json:"call"`
	Fingerprint string    `json:"fingerprint"`
	Since       time.Time `json:"since"`
	// Stored says that generation 0 is known to be stored: from then on only waiting is right.
	Stored bool `json:"stored"`
}

func idempotencyKey(c *messages.Call) string {
	return messages.Key(c.Tenant, string(c.Kind)+"/"+c.Tool, c.IdempotencyKey)
}

// claim takes the idempotency key for the call, or attaches to the call that has it.
func (n *Node) claim(ctx context.Context, c *messages.Call) (pipeline.Pending, error) {
	key := idempotencyKey(c)
	mine := claimRecord{Call: c.ID, Fingerprint: c.Fingerprint, Since: time.Now().UTC()}
	_, err := n.idempotency.Put(ctx, key, rawjson.Encode(mine), 0, pipeline.IfAbsent())
	if err == nil {
		return nil, nil
	}
	if errors.Is(err, jet.ErrNoAnswer) && ctx.Err() == nil {
		return n.claim(ctx, c)
	}
	unavailable := func(err error) error {
		return messages.NewFault(messages.StoreUnavailable, "the idempotency record: %v; the call was not accepted", err).From("entry")
	}
	if !errors.Is(err, pipeline.ErrExists) {
		return nil, unavailable(err)
	}
	e, err := n.idempotency.Get(ctx, key)
	if errors.Is(err, pipeline.ErrNotFound) {
		return n.claim(ctx, c) // freed between
	}
	if err != nil {
		return nil, unavailable(err)
	}
	var was claimRecord
	if err := json.Unmarshal(e.Value, &was); err != nil {
		return nil, unavailable(err)
	}
	if was.Call == c.ID {
		return nil, nil // our own write, whose answer was lost
	}
	if was.Fingerprint != c.Fingerprint {
		return nil, messages.NewFault(messages.IdempotencyMismatch,
			"the idempotency key was used %s ago for another request (call %s); use a new key for a new request",
			time.Since(was.Since).Round(time.Second), was.Call).At("Idempotency-Key").From("entry")
	}
	c.ID = was.Call
	c.Return.Inbox = n.inbox + ".c." + c.ID
	if p := n.waiters.get(c.ID); p != nil {
		return guest{p}, nil
	}
	if was.lost() {
		again, err := n.enter(ctx, c, false)
		if err != nil {
			return nil, err
		}
		return again, nil
	}
	p := newPending(n, c)
	p.attached, p.unsure = true, !was.Stored
	return p, nil
}

// claimantTime is how long a claimant may take to store its call. Storing it again under the same id is the same call,
// so a claimant that is only slow loses nothing by it.
const claimantTime = 3 * time.Second

// lost reports whether the claimant seems to have died, or lost its server, between the record and the store.
func (r claimRecord) lost() bool { return !r.Stored && time.Since(r.Since) > claimantTime }

// restore stores a call again whose claimant never did, for those who wait for it.
func (p *pending) restore(ctx context.Context) {
	e, err := p.n.idempotency.Get(ctx, idempotencyKey(p.call))
	var rec claimRecord
	if err != nil || json.Unmarshal(e.Value, &rec) != nil || rec.Call != p.call.ID || rec.Stored {
		p.unsure = err != nil
		return
	}
	if rec.lost() {
		_, err := p.n.enter(ctx, p.call.Clone(), false)
		p.unsure = err != nil
	}
}

// claimed notes that generation 0 is stored. The call may have ended already, and its key may be free again or another
// call's: only its own record is changed.
func (n *Node) claimed(c *messages.Call) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	key := idempotencyKey(c)
	e, err := n.idempotency.Get(ctx, key)
	var rec claimRecord
	if err != nil || json.Unmarshal(e.Value, &rec) != nil || rec.Call != c.ID || rec.Stored {
		return // without it, the same key only stores the same call again; one that says so already may be a held call's
	}
	rec.Stored = true
	if _, err := n.idempotency.Put(ctx, key, rawjson.Encode(rec), 0, pipeline.IfRevision(e.Revision)); err != nil && !errors.Is(err, pipeline.ErrChanged) {
		n.log.Warn("the idempotency record was not completed", "call", c.ID, "err", err)
	}
}

// Call implements pipeline.Caller for stages and agents that need a whole call of their own. It has a lease and a slip
// of its own, and its own entry class, so that it cannot be starved by the calls that wait for it.
func (n *Node) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	parent := c.Parent
	if parent == "" {
		parent = "none"
	}
	body := c.Request()
	if text, ok := c.RequestText(); ok {
		body = []byte(text)
	}
	p, err := n.Accept(ctx, pipeline.Request{
		Wire: c.Wire, Kind: c.Kind, Tool: c.Tool, Body: body, Tenant: c.Tenant, Role: c.Role, Models: c.Models, Session: c.Session, Run: c.Run,
		User: c.User, Agent: c.Agent, RequestID: c.RequestID, IdempotencyKey: c.IdempotencyKey, Deadline: c.Deadline,
		Skip: c.Skip, Parent: parent, Cache: c.Cache, Stream: c.Stream, Trace: c.Trace,
	})
	if err != nil {
		return nil, err
	}
	end, err := p.Wait(ctx, nil)
	if err != nil {
		p.Leave()
	}
	return end, err
}

// Result implements pipeline.Entry.
func (n *Node) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	for {
		c, err := n.recorded(ctx, tenant, id)
		if c != nil || err != nil && ctx.Err() == nil {
			return c, err
		}
		parked, open := n.heldNow(ctx, tenant, id)
		if open {
			return nil, pipeline.ErrHeld
		}
		if p := n.waiters.get(id); !parked && (p == nil || p.call.Tenant != tenant) {
			known, err := n.known(ctx, tenant, id)
			if err == nil && !known {
				return nil, messages.NewFault(messages.NotFound, "no call %s; results are kept %s after a call's end, for submitted calls and calls with an idempotency key", id, n.cfg.ResultTTL).From("entry")
			}
		}
		pause(ctx, 250*time.Millisecond)
		if ctx.Err() != nil {
			return nil, nil
		}
	}
}

// known reports whether the tenant's call is under way somewhere: its mark is made when a submitted call is accepted.
func (n *Node) known(ctx context.Context, tenant, id string) (bool, error) {
	_, err := n.results.Get(ctx, submittedKey(tenant, id))
	if errors.Is(err, pipeline.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// submittedKey is the mark of a submitted call that is under way, so that asking for its result can tell "not yet"
// from "never".
func submittedKey(tenant, id string) string { return messages.Key(tenant, id) + ".submitted" }
