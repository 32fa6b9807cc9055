package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// ModelCacheConfig is agent.interceptor.model-cache.
type ModelCacheConfig struct {
	Common     `yaml:",inline"`
	TTL        time.Duration `yaml:"ttl" doc:"Time that an answer is kept."`
	MaxEntries int           `yaml:"max-entries" doc:"Answers that are kept."`
}

// Values of the note model cache.
const (
	cacheHit  = "hit"
	cacheMiss = "miss"
)

// cachedReply is an entry. What it is for stands in it and is checked on reading: a key is not trusted alone.
type cachedReply struct {
	Tenant string          `json:"tenant"`
	Key    string          `json:"key"`
	Stored time.Time       `json:"stored"`
	Reply  json.RawMessage `json:"reply"`
}

type modelCache struct {
	cfg    ModelCacheConfig
	store  func(string) pipeline.Store
	log    *slog.Logger
	bound  *quota.StoreBound
	hits   atomic.Int64
	misses atomic.Int64
}

type modelCacheState struct {
	Key string `json:"key"`
}

func defaultModelCache() ModelCacheConfig {
	return ModelCacheConfig{TTL: 5 * time.Minute, MaxEntries: 10000}
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ModelCacheConfig) Validate() error {
	var f faults
	f.when(c.TTL <= 0, "ttl: %s; need more than 0", c.TTL)
	f.when(c.MaxEntries < 1, "max-entries: %d; need at least 1", c.MaxEntries)
	return f.join()
}

// newModelCache makes the exact cache of model replies. Two requests are the same if their tenant, model and whole
// body are (canonical JSON), but for stream and stream_options: the face replays a cached reply to a streaming caller.
// Only a whole, successful, non-empty reply that is not degraded is stored. The caller's wish (Shallot-Cache): use is
// the default, refresh asks the model and stores anew, off passes by. It fails open: a store that is down is a miss.
func newModelCache(cfg *ModelCacheConfig, d Deps) (pipeline.Stage, error) {
	m := &modelCache{cfg: *cfg, store: d.Store, log: d.Log, bound: quota.NewStoreBound(modelCachePrefix, cfg.MaxEntries)}
	return pipeline.Stage{
		Role: pipeline.RoleCache, Before: m.before, After: m.after, Details: m.details,
		Reads: []string{"request", "reply"}, ReadsAfter: []string{"reply"}, Writes: []string{"reply", "cache"},
	}, nil
}

const modelCachePrefix = "model."

func (m *modelCache) details(context.Context) map[string]any {
	hits, misses := m.hits.Load(), m.misses.Load()
	rate := 0.0
	if hits+misses > 0 {
		rate = float64(hits) / float64(hits+misses)
	}
	return map[string]any{"cacheHits": hits, "cacheMisses": misses, "hitRate": rate}
}

func (m *modelCache) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	key, ok := modelCacheKey(c)
	if !ok || c.Cache == "off" {
		c.Unnote(messages.NoteModelCache)
		return pipeline.Continue(), nil
	}
	if c.Cache != "refresh" {
		if reply := m.look(ctx, c, key); reply != nil {
			m.hits.Add(1)
			c.SetReply(reply)
			c.Note(messages.NoteModelCache, cacheHit)
			return pipeline.Answer(), nil
		}
	}
	m.misses.Add(1)
	c.Note(messages.NoteModelCache, cacheMiss)
	return pipeline.Continue(), c.SetState(modelCacheState{Key: key})
}

func (m *modelCache) look(ctx context.Context, c *messages.Call, key string) []byte {
	ctx, cancel := context.WithTimeout(ctx, openStoreWait)
	defer cancel()
	e, err := m.store("cache").Get(ctx, key)
	if err != nil {
		if !errors.Is(err, pipeline.ErrNotFound) {
			m.log.WarnContext(ctx, "model cache not readable; taken as a miss", "call", c.ID, "err", err)
		}
		return nil
	}
	var v cachedReply
	if json.Unmarshal(e.Value, &v) != nil || v.Tenant != c.Tenant || v.Key != key || time.Since(v.Stored) >= m.cfg.TTL {
		return nil
	}
	if !storable(c, v.Reply) {
		return nil
	}
	return v.Reply
}

func (m *modelCache) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st modelCacheState
	if ok, err := c.State(&st); err != nil || !ok {
		return pipeline.Continue(), err
	}
	_, degraded := c.Notes[messages.NoteDegraded]
	if c.Fault != nil || degraded || !storable(c, c.Reply()) {
		return pipeline.Continue(), nil
	}
	v := rawjson.Encode(cachedReply{Tenant: c.Tenant, Key: st.Key, Stored: time.Now().UTC(), Reply: c.Reply()})
	ctx, cancel := context.WithTimeout(ctx, openStoreWait)
	defer cancel()
	store := m.store("cache")
	if err := m.bound.Room(ctx, store); err != nil {
		return pipeline.Continue(), fmt.Errorf("model cache: not stored: %w", err)
	}
	if _, err := store.Put(ctx, st.Key, v, m.cfg.TTL, pipeline.Always()); err != nil {
		return pipeline.Continue(), fmt.Errorf("model cache: not stored: %w", err)
	}
	return pipeline.Continue(), nil
}

// storable reports whether a reply is whole: it says something and its every choice came to its end.
func storable(c *messages.Call, reply []byte) bool {
	v := view.Of(c.Wire)
	if view.EmptyReply(v, reply) {
		return false
	}
	for _, ch := range v.Choices(reply) {
		switch ch.Finish() {
		case "", view.FinishLength, view.FinishFilter, view.FinishError:
			return false
		}
	}
	return true
}

// modelCacheKey is a hash of the tenant, the model and the request. ok is false for a request that is not a JSON
// object.
func modelCacheKey(c *messages.Call) (key string, ok bool) {
	request := c.Request()
	if len(request) == 0 || request[0] != '{' {
		return "", false
	}
	request = rawjson.DropField(rawjson.DropField(request, "stream"), "stream_options")
	body, err := rawjson.Canonical(request)
	if err != nil {
		return "", false
	}
	kind := "model-cache/1"
	if w := c.Wire.Or(); w != messages.ChatWire {
		kind += "/" + string(w)
	}
	hash := hashOf(kind, c.Tenant, view.ModelName(request), string(body))
	return modelCachePrefix + messages.Key(c.Tenant, hash), true
}
