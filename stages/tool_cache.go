package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// ToolCacheConfig is agent.interceptor.tool-cache.
type ToolCacheConfig struct {
	Common     `yaml:",inline"`
	TTL        time.Duration `yaml:"ttl" doc:"Time to live, where the tool has none of its own."`
	MaxEntries int           `yaml:"max-entries" doc:"Results that are kept."`
	Sweep      time.Duration `yaml:"sweep" doc:"How often what is over is cleared away."`
}

const (
	toolCachePrefix = "tool."
	metaFromCache   = "from_cache"
	// evictedCacheTTL keeps an entry that names an evicted result from outliving it: those are kept for 24 hours.
	evictedCacheTTL = 23 * time.Hour
)

type toolCache struct {
	cfg     ToolCacheConfig
	tools   toolPolicies
	store   func(string) pipeline.Store
	log     *slog.Logger
	bound   *quota.StoreBound
	flights flights
	hits    atomic.Int64
	misses  atomic.Int64
}

// toolCacheState is what the before leaves for the after: the key and not the arguments, which the request holds.
type toolCacheState struct {
	Key    string        `json:"key"`
	TTL    time.Duration `json:"ttl"`
	Flight bool          `json:"flight,omitempty"` // this call runs the tool for all equal ones
}

func defaultToolCache() ToolCacheConfig {
	return ToolCacheConfig{TTL: 5 * time.Minute, MaxEntries: 1000, Sweep: time.Minute}
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ToolCacheConfig) Validate() error {
	var f faults
	f.when(c.TTL < time.Millisecond, "ttl: %s; need at least 1ms", c.TTL)
	f.when(c.MaxEntries < 1, "max-entries: %d; need at least 1", c.MaxEntries)
	f.when(c.Sweep <= 0, "sweep: %s; need more than 0", c.Sweep)
	return f.join()
}

// newToolCache makes the cache of tool results. Only tools whose policy allows it are cached, only successes are
// stored, never what stands in for one, and never across tenants unless the tool is declared shared. A hit answers at
// once with the stored result, the note caching.tool.cacheHit and the metadata from_cache. The caller's wish
// (Shallot-Cache): refresh runs the tool and stores anew, off passes by.
//
// Equal calls at one time run the tool once: the first leaves a mark in the store, the others wait in their before for
// its result, no longer than the tool's time limit, and never so long that they could not run the tool themselves
// before their own deadline. Each waits once: if the first one fails, dies or is late, the others run the tool.
//
// It fails open: a store that does not answer is a miss. Hits and misses are counted by process; cacheSize is the
// store's.
func newToolCache(cfg *ToolCacheConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	t := &toolCache{
		cfg: *cfg, tools: tools, store: d.Store, log: d.Log,
		bound: quota.NewStoreBound(toolCachePrefix, cfg.MaxEntries),
	}
	return pipeline.Stage{
		Role: pipeline.RoleCache, Before: t.before, After: t.after, Finally: true,
		Reads: []string{"tool", "request", "reply"}, Writes: []string{"reply"},
		Details: t.details, Sweep: t.sweep, SweepEvery: cfg.Sweep,
	}, nil
}

func (t *toolCache) details(ctx context.Context) map[string]any {
	ctx, cancel := openStore(ctx)
	defer cancel()
	size := 0
	if keys, err := t.store("cache").Keys(ctx, toolCachePrefix); err == nil {
		size = len(keys)
	}
	hits, misses := t.hits.Load(), t.misses.Load()
	rate := 0.0
	if hits+misses > 0 {
		rate = math.Round(float64(hits)/float64(hits+misses)*1000) / 1000
	}
	return map[string]any{
		"cacheSize": size, "cacheHits": hits, "cacheMisses": misses, "hitRate": rate,
		"ttlMs": t.cfg.TTL.Milliseconds(), "maxEntries": t.cfg.MaxEntries,
	}
}

func (t *toolCache) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	def, e, err := t.tools.of(ctx, c)
	if err != nil {
		return pipeline.Continue(), nil // tool-arguments has judged that; without a definition nothing is remembered
	}
	id, ok := identify(c, def, e)
	if !ok {
		return pipeline.Continue(), nil
	}
	st := toolCacheState{Key: id.key(), TTL: t.cfg.TTL}
	if e.CacheTTL > 0 {
		st.TTL = e.CacheTTL
	}
	c.Note(messages.NoteToolKey, st.Key)
	if c.Cache == "off" {
		return pipeline.Continue(), nil
	}
	if c.Cache != "refresh" {
		r := t.look(ctx, c.ID, id)
		if r == nil {
			r, st.Flight = t.join(ctx, c, id, e.Timeout)
		}
		if r != nil {
			t.hits.Add(1)
			c.Note(messages.NoteCacheHit, true)
			r.put(c, metaFromCache, true)
			return pipeline.Answer(), nil
		}
	}
	t.misses.Add(1)
	c.Note(messages.NoteModelCache, cacheMiss) // the note behind the header Shallot-Cache, of tools too
	return pipeline.Continue(), c.SetState(st)
}

// look returns a fresh result, and drops one that is too old.
func (t *toolCache) look(ctx context.Context, call string, id callIdentity) *toolResult {
	ctx, cancel := context.WithTimeout(ctx, openStoreWait)
	defer cancel()
	store, key := t.store("cache"), toolCachePrefix+id.key()
	e, err := store.Get(ctx, key)
	if err != nil {
		if !errors.Is(err, pipeline.ErrNotFound) {
			t.log.WarnContext(ctx, "tool cache not readable; taken as a miss", "call", call, "err", err)
		}
		return nil
	}
	var r toolResult
	if json.Unmarshal(e.Value, &r) != nil || !r.same(id) || len(r.Reply) == 0 {
		return nil
	}
	if !r.fresh(time.Now()) {
		if err := store.Delete(ctx, key); err != nil {
			t.log.WarnContext(ctx, "old entry of the tool cache not dropped", "call", call, "err", err)
		}
		return nil
	}
	return &r
}

func (t *toolCache) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st toolCacheState
	if ok, err := c.State(&st); err != nil || !ok {
		return pipeline.Continue(), err
	}
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	var err error
	if succeeded(c) {
		err = t.keep(ctx, c, st)
	}
	if st.Flight {
		t.land(ctx, c, st)
	}
	return pipeline.Continue(), err
}

func (t *toolCache) keep(ctx context.Context, c *messages.Call, st toolCacheState) error {
	def, e, err := t.tools.of(ctx, c)
	if err != nil {
		return nil
	}
	id, ok := identify(c, def, e)
	if !ok || id.key() != st.Key {
		t.log.DebugContext(ctx, "tool cache: not stored, a stage further in changed the arguments",
			"call", c.ID, "tool", c.Tool)
		return nil
	}
	ttl := st.TTL
	if c.Flag(messages.NoteEvicted) {
		ttl = min(ttl, evictedCacheTTL)
	}
	store := t.store("cache")
	if err := t.bound.Room(ctx, store); err != nil {
		return fmt.Errorf("tool cache: not stored: %w", err)
	}
	v := rawjson.Encode(resultOf(c, id, ttl))
	if _, err := store.Put(ctx, toolCachePrefix+st.Key, v, ttl, pipeline.Always()); err != nil {
		return fmt.Errorf("tool cache: not stored: %w", err)
	}
	return nil
}

// sweep drops what is too old and was not asked for again. Most stores end entries by themselves; this makes it sure,
// and in time.
func (t *toolCache) sweep(ctx context.Context) error {
	store := t.store("cache")
	keys, err := store.Keys(ctx, toolCachePrefix)
	if err != nil {
		return err
	}
	for _, key := range keys {
		e, err := store.Get(ctx, key)
		if errors.Is(err, pipeline.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		var r toolResult
		if json.Unmarshal(e.Value, &r) == nil && r.fresh(time.Now()) {
			continue
		}
		if err := store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
