package stages

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// toolPolicies finds what a tool is and what holds for it, for the tool stages.
type toolPolicies struct {
	tools tool.Tools
	rules tool.Rules
}

func newToolPolicies(d Deps) (toolPolicies, error) {
	if d.Tools == nil {
		return toolPolicies{}, errors.New("no tool registry is given")
	}
	return toolPolicies{d.Tools, d.rules()}, nil
}

// of returns the definition of the call's tool, in the version that tool-arguments resolved, and its policy. A registry
// of the program's own that panics has not found it: a stage that asks here must not lose the call.
func (p toolPolicies) of(ctx context.Context, c *messages.Call) (def *tool.Definition, e tool.Effective, err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("panic: %v", x)
		}
	}()
	name := c.Tool
	var version string
	if c.Noted(messages.NoteToolVersion, &version) && version != "" {
		name = tool.Pin(name, version)
	}
	if def, err = p.tools.Get(ctx, name); err != nil {
		return nil, e, err
	}
	return def, p.rules.Effective(def), nil
}

// callIdentity says which calls of a tool are the same: scope, tool, version, and the arguments as canonical JSON,
// after they were read against the schema, so that 3 and "3" are one value where an integer is asked for. It stands in
// the stored value as well, so that a key is never trusted alone.
type callIdentity struct {
	Scope     []string        `json:"scope"` // shared; tenant, its name; session, tenant, its name
	Tool      string          `json:"tool"`  // name@version
	Arguments json.RawMessage `json:"arguments"`
}

// identify returns the call's identity; ok is false where nothing may be remembered: the tool's policy says no, or the
// scope is the session and the call has none.
func identify(c *messages.Call, def *tool.Definition, e tool.Effective) (id callIdentity, ok bool) {
	if !e.Cacheable {
		return id, false
	}
	switch e.CacheScope {
	case tool.ScopeShared:
		id.Scope = []string{e.CacheScope}
	case tool.ScopeSession:
		if c.Session == "" {
			return id, false
		}
		id.Scope = []string{e.CacheScope, c.Tenant, c.Session}
	case tool.ScopeTenant:
		id.Scope = []string{e.CacheScope, c.Tenant}
	default:
		return id, false
	}
	args := c.Request()
	if rawjson.IsNull(args) {
		args = []byte("{}")
	}
	canonical, err := rawjson.Canonical(args)
	if err != nil {
		return id, false
	}
	id.Tool, id.Arguments = def.Ref(), canonical
	return id, true
}

// key is where the identity is found in a store: the tenant for people, and a hash of it all.
func (i callIdentity) key() string {
	parts := append(slices.Clone(i.Scope), i.Tool, string(i.Arguments))
	return messages.Key(i.Scope[min(1, len(i.Scope)-1)], hashOf(parts...))
}

// hashOf is the SHA-256 over the parts, in hexadecimal. Each has its length before it, so that none can reach into
// another.
func hashOf(parts ...string) string {
	h := sha256.New()
	for _, s := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (i callIdentity) same(o callIdentity) bool {
	return slices.Equal(i.Scope, o.Scope) && i.Tool == o.Tool && string(i.Arguments) == string(o.Arguments)
}

// toolResult is a successful result as the cache and the stale cache hold it.
type toolResult struct {
	callIdentity
	Stored     time.Time       `json:"stored"`
	TTLMs      int64           `json:"ttlMs"`
	Reply      json.RawMessage `json:"reply"`
	Text       bool            `json:"text,omitempty"` // the reply is not JSON; Reply is it as a JSON string
	Structured json.RawMessage `json:"structured,omitempty"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
}

func resultOf(c *messages.Call, id callIdentity, ttl time.Duration) toolResult {
	r := toolResult{
		callIdentity: id, Stored: time.Now().UTC(), TTLMs: ttl.Milliseconds(), Reply: c.Reply(),
		Structured: c.Notes[messages.NoteStructured], Metadata: c.Notes[messages.NoteMetadata],
	}
	_, r.Text = c.ReplyText()
	return r
}

// fresh reports whether the result may still be used. One whose age is exactly its time is too old.
func (r toolResult) fresh(now time.Time) bool {
	return now.Sub(r.Stored) < time.Duration(r.TTLMs)*time.Millisecond
}

// put makes the result the call's reply, with one mark more in its metadata.
func (r toolResult) put(c *messages.Call, key string, mark any) {
	if s, ok := rawjson.IsString(r.Reply); ok && r.Text {
		c.SetReplyText(s)
	} else {
		c.SetReply(r.Reply)
	}
	restore := func(note string, raw json.RawMessage) {
		c.Unnote(note)
		if len(raw) > 0 {
			c.Note(note, raw)
		}
	}
	restore(messages.NoteStructured, r.Structured)
	restore(messages.NoteMetadata, r.Metadata)
	c.Unnote(messages.NoteIsError)
	markMetadata(c, key, mark)
}

// markMetadata sets one key of the result's metadata and leaves the others.
func markMetadata(c *messages.Call, key string, value any) {
	meta := c.Notes[messages.NoteMetadata]
	if len(meta) == 0 || meta[0] != '{' {
		meta = json.RawMessage("{}")
	}
	c.Note(messages.NoteMetadata, json.RawMessage(rawjson.SetField(meta, key, rawjson.Encode(value))))
}

// succeeded reports whether the call holds a result that may stand for the tool's own: no fault, no error result, and
// nothing that only stands in for one.
func succeeded(c *messages.Call) bool {
	_, degraded := c.Notes[messages.NoteDegraded]
	return c.Fault == nil && c.HasReply() && !degraded && !c.Flag(messages.NoteIsError) && !tool.AsksForInput(c.Reply())
}

// try names the attempt in which the stage that has the call runs: the attempts of all stages around it. It is the
// same in before and after, and after a redelivery.
func try(c *messages.Call) string {
	var b strings.Builder
	for _, f := range c.Slip.Frames {
		if f.Stop != c.Slip.At {
			b.WriteString(strconv.Itoa(f.Attempt))
			b.WriteByte('-')
		}
	}
	return b.String()
}

// poll calls look again and again, less and less often, until it says done or the time is over. Stages may wait only
// for a bounded time: whoever runs them shows that they are at work meanwhile.
func poll(ctx context.Context, limit time.Duration, look func(context.Context) (done bool)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if look(ctx) {
			return
		}
	}
}

// openStore bounds how long a stage that fails open waits for its store, also where the call's own time is over: a
// result that stands in is worth most then.
func openStore(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == context.DeadlineExceeded {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, openStoreWait)
}

// cutVersion splits name@version.
func cutVersion(tool string) (name, version string, pinned bool) { return strings.Cut(tool, "@") }
