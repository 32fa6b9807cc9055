package stages

import (
	"context"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/texts"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages/internal/evict"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// LargeResultEvictionConfig is agent.interceptor.large-result-eviction.
type LargeResultEvictionConfig struct {
	Common              `yaml:",inline"`
	TokenThreshold      int    `yaml:"token-threshold" doc:"Tokens above which a result is moved away."`
	EvictionDir         string `yaml:"eviction-dir" doc:"Directory, where eviction-store is dir."`
	PreserveSampleChars int    `yaml:"preserve-sample-chars" doc:"Characters at the beginning that stay."`
	EvictionStore       string `yaml:"eviction-store" doc:"object (the object store of NATS) or dir."`
}

func defaultEviction() LargeResultEvictionConfig {
	return LargeResultEvictionConfig{
		TokenThreshold: 20000, EvictionDir: "/tmp/agent-evict", PreserveSampleChars: 500, EvictionStore: evictToObject,
	}
}

const (
	evictToObject = "object"
	evictToDir    = "dir"
	// failedSample is how many times the sample's characters are kept when the whole cannot be saved.
	failedSample = 4
)

// Validate returns what is wrong, joined, each error with its key in front.
func (c *LargeResultEvictionConfig) Validate() error {
	var f faults
	f.when(c.TokenThreshold < 1, "token-threshold: %d; need at least 1", c.TokenThreshold)
	f.when(c.PreserveSampleChars < 0, "preserve-sample-chars: %d; need 0 or more", c.PreserveSampleChars)
	f.when(c.EvictionStore != evictToObject && c.EvictionStore != evictToDir,
		"eviction-store: %q; known: object, dir", c.EvictionStore)
	f.when(c.EvictionStore == evictToDir && c.EvictionDir == "",
		"eviction-dir: empty; name a directory or set eviction-store to object")
	return f.join()
}

type largeResultEviction struct {
	cfg   LargeResultEvictionConfig
	tools toolPolicies
	keep  evicted.Keeper
	texts texts.Texts
	log   *slog.Logger
}

// newEviction makes the stage that moves a large result out of the way of the model. A result of more than
// token-threshold tokens, a quarter of its characters, is saved whole and replaced by its first characters, the path
// and the size. A streamed result passes at once as far as it could stand before those two lines; the rest is held back
// until its size is known. A tool may have a limit of its own, or none (max-result). The stage stands inner to the
// cache, so that a hit is never larger than a miss.
//
// The path is <agent>/<tool>_<milliseconds>.txt, with the tenant before it where it is not the default one; each part
// passes messages.Token. A result of a tool whose cache the tenants share lies under =shared/ instead, for all of them.
// ReadEvicted reads parts back. If the whole cannot be saved, four times as many characters and a marker stay, and no
// path is named.
func newEviction(cfg *LargeResultEvictionConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	l := &largeResultEviction{cfg: *cfg, tools: tools, texts: texts.In(d.Texts), log: d.Log}
	s := pipeline.Stage{
		Role: pipeline.RoleEvict, After: l.after, Filter: l.filter, Reads: []string{"reply"}, Writes: []string{"reply"},
	}
	if cfg.EvictionStore == evictToDir {
		dir := evicted.InDir{Dir: cfg.EvictionDir}
		l.keep, s.Sweep, s.SweepEvery = dir, dir.Sweep, time.Hour
	} else {
		l.keep = evicted.InObjects{Objects: d.Objects, Store: d.Store}
	}
	return s, nil
}

func (l *largeResultEviction) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	shown := 0 // characters of the text that were let pass
	c.Noted(messages.NoteEvictedPassed, &shown)
	c.Unnote(messages.NoteEvictedPassed)
	if c.Fault != nil || !c.HasReply() || c.Flag(messages.NoteEvicted) {
		return pipeline.Continue(), nil
	}
	limit, raw := l.limit(ctx, c), evict.Largest(c)
	if limit < 0 || len(raw)/4 <= limit {
		return pipeline.Continue(), nil // no more characters than bytes
	}
	text := evict.Text(raw)
	chars := utf8.RuneCountInString(text)
	if chars/4 <= limit {
		return pipeline.Continue(), nil
	}
	begin := func(n int) string {
		if shown > 0 {
			return evicted.Prefix(evict.Text(c.Reply()), max(n, shown))
		}
		return evicted.Prefix(text, n)
	}
	size := l.texts.Size(chars)
	path, err := l.save(ctx, c, text)
	if err != nil {
		l.log.WarnContext(ctx, "large result not saved; it is cut", "call", c.ID, "tool", c.Tool, "chars", chars, "err", err)
		c.SetReply([]byte(begin(failedSample*l.cfg.PreserveSampleChars) + "...\n" + l.texts.NotSaved + "\n" + size))
	} else {
		sample := l.cfg.PreserveSampleChars
		if shown > 0 {
			sample = shown // room was kept for the lines below, not for a longer sample
		}
		c.SetReply([]byte(begin(sample) + l.savedLines(path) + size))
		c.Note(messages.NoteEvicted, true)
	}
	c.Unnote(messages.NoteStructured)
	return pipeline.Continue(), nil
}

// limit is the tool's own, else the stage's; -1 is none.
func (l *largeResultEviction) limit(ctx context.Context, c *messages.Call) int {
	if def, _, err := l.tools.of(ctx, c); err == nil && def.MaxResult != 0 {
		return def.MaxResult
	}
	return l.cfg.TokenThreshold
}

func (l *largeResultEviction) save(ctx context.Context, c *messages.Call, text string) (path string, err error) {
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	base, _, _ := cutVersion(c.Tool)
	_, e, err := l.tools.of(ctx, c)
	shared := err == nil && e.CacheScope == tool.ScopeShared // a hit of another tenant names the same path
	for n := range 1000 {
		name := evicted.Name(c.Tenant, c.Agent, base, time.Now().UnixMilli(), n)
		if shared {
			name = evicted.SharedName(base, time.Now().UnixMilli(), n)
		}
		path, taken, err := l.keep.Save(ctx, name, c.ID, []byte(text))
		if !taken || err != nil {
			return path, err
		}
	}
	return "", fmt.Errorf("no free name for a result of %s", base)
}

// filter makes the filter; nil where nothing is evicted.
func (l *largeResultEviction) filter(c *messages.Call) (pipeline.ChunkFilter, error) {
	c.Unnote(messages.NoteEvictedPassed) // of an earlier attempt
	ctx, cancel := context.WithTimeout(context.Background(), policyTime)
	defer cancel()
	limit := l.limit(ctx, c)
	if limit < 0 {
		return nil, nil
	}
	most := 4*limit + 3 // a quarter of them is no more than the limit
	return evict.NewFilter(c, most, l.reserve(c)), nil
}

// policyTime is how long the tool's definition may take to be found.
const policyTime = 5 * time.Second

// savedLines stand after the sample: where the whole is.
func (l *largeResultEviction) savedLines(path string) string {
	return "...\n" + l.texts.Saved(path) + "\n"
}

// reserve is the room of the lines that stand after what was let pass, with the longest numbers.
func (l *largeResultEviction) reserve(c *messages.Call) int {
	base, _, _ := cutVersion(c.Tool)
	room := func(name string) int {
		return utf8.RuneCountInString(l.savedLines(l.keep.Path(name)) + l.texts.Size(longestMs))
	}
	return max(room(evicted.Name(c.Tenant, c.Agent, base, longestMs, longestSuffix)),
		room(evicted.SharedName(base, longestMs, longestSuffix)))
}

const (
	longestMs     = 9_999_999_999_999 // of the year 2286; as many characters do not fit into a reply either
	longestSuffix = 1000
)
