package stages

import (
	"context"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// LargeResultEvictionConfig is agent.interceptor.large-result-eviction (S0-EVICT-7).
type LargeResultEvictionConfig struct {
	Common              `yaml:",inline"`
	TokenThreshold      int    `yaml:"token-threshold" json:"token-threshold" doc:"Tokens above which a result is moved away."`
	EvictionDir         string `yaml:"eviction-dir" json:"eviction-dir" doc:"Directory, where eviction-store is dir."`
	PreserveSampleChars int    `yaml:"preserve-sample-chars" json:"preserve-sample-chars" doc:"Characters at the beginning that stay."`
	EvictionStore       string `yaml:"eviction-store" json:"eviction-store" doc:"object (the object store of NATS) or dir."`
}

func largeResultEvictionDefaults() LargeResultEvictionConfig {
	return LargeResultEvictionConfig{TokenThreshold: 20000, EvictionDir: "/tmp/agent-evict", PreserveSampleChars: 500, EvictionStore: evictToObject}
}

const (
	evictToObject = "object"
	evictToDir    = "dir"
	// noteEvicted is true where the reply is the summary of an evicted result.
	noteEvicted = "tool.evicted"
	// notePassed is how many characters of a streamed result the filter let pass. The after begins its reply with them.
	notePassed = "tool.evictedPassed"
	// failedSample is how many times the sample's characters are kept when the whole cannot be saved (S0-EVICT-6).
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
	keep  evictionStore
	log   *slog.Logger
}

// newLargeResultEviction makes the stage that moves a large result out of the way of the model (S0-EVICT-1 to 7). A
// result of more than token-threshold tokens, a quarter of its characters, is saved whole and replaced by its first
// characters, the path and the size. A streamed result passes at once as far as it could stand before those two lines;
// the rest is held back until its size is known (EV-13). A tool may have a limit of its own, or none (max-result). It stands inner to the
// cache, so that a hit is never larger than a miss.
//
// The path is <agent>/<tool>_<milliseconds>.txt, with the tenant before it where it is not the default one; each part
// passes messages.Token. A result of a tool whose cache the tenants share lies under =shared/ instead, for all of them.
// ReadEvicted reads parts back. If the whole cannot be saved, four times as many characters and
// a marker stay, and no path is named (EV-6).
func newLargeResultEviction(cfg *LargeResultEvictionConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	l := &largeResultEviction{cfg: *cfg, tools: tools, log: d.Log}
	s := pipeline.Stage{After: l.after, Filter: l.filter, Reads: []string{"reply"}, Writes: []string{"reply"}}
	if cfg.EvictionStore == evictToDir {
		dir := evictedDir{cfg.EvictionDir}
		l.keep, s.Sweep, s.SweepEvery = dir, dir.sweep, time.Hour
	} else {
		l.keep = evictedObjects{d.Objects, d.Store}
	}
	return s, nil
}

func (l *largeResultEviction) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	shown := 0 // characters of the text that were let pass
	c.Noted(notePassed, &shown)
	c.Unnote(notePassed)
	if c.Fault != nil || !c.HasReply() || c.Flag(noteEvicted) {
		return pipeline.Continue(), nil
	}
	limit, raw := l.limit(ctx, c), largest(c)
	if limit < 0 || len(raw)/4 <= limit {
		return pipeline.Continue(), nil // no more characters than bytes
	}
	text := textOf(raw)
	chars := utf8.RuneCountInString(text)
	if chars/4 <= limit {
		return pipeline.Continue(), nil
	}
	begin := func(n int) string {
		if shown > 0 {
			return prefix(textOf(c.ReplyBytes()), max(n, shown))
		}
		return prefix(text, n)
	}
	size := sizeLine(chars)
	path, err := l.save(ctx, c, text)
	if err != nil {
		l.log.WarnContext(ctx, "large result not saved; it is cut", "call", c.ID, "tool", c.Tool, "chars", chars, "err", err)
		c.SetReply([]byte(begin(failedSample*l.cfg.PreserveSampleChars) + "...\n[结果过长,保存失败,已截断]\n" + size))
	} else {
		sample := l.cfg.PreserveSampleChars
		if shown > 0 {
			sample = shown // room was kept for the lines below, not for a longer sample
		}
		c.SetReply([]byte(begin(sample) + savedLines(path) + size))
		c.Note(noteEvicted, true)
	}
	c.Unnote(toolspec.NoteStructured)
	return pipeline.Continue(), nil
}

// largest is the result that counts. Structured content beside a text is the same result for programs; if it alone is
// large, it is what is saved.
func largest(c *messages.Call) []byte {
	raw := c.ReplyBytes()
	if s := c.Notes[toolspec.NoteStructured]; len(s) > len(raw) {
		return s
	}
	return raw
}

func textOf(raw []byte) string {
	if text, ok := messages.IsString(raw); ok {
		return text
	}
	return string(raw)
}

func savedLines(path string) string { return "...\n[完整结果已保存至: " + path + "]\n" }

func sizeLine(chars int) string {
	return fmt.Sprintf("[原始大小: %d chars, Token≈%d]", chars, chars/4)
}

// limit is the tool's own, else the stage's; -1 is none.
func (l *largeResultEviction) limit(ctx context.Context, c *messages.Call) int {
	if def, _, err := l.tools.of(ctx, c); err == nil && def.MaxResult != 0 {
		return def.MaxResult
	}
	return l.cfg.TokenThreshold
}

func (l *largeResultEviction) save(ctx context.Context, c *messages.Call, text string) (path string, err error) {
	ctx, cancel := settleContext(ctx)
	defer cancel()
	tool, _, _ := cutVersion(c.Tool)
	_, e, err := l.tools.of(ctx, c)
	shared := err == nil && e.CacheScope == toolspec.ScopeShared // a hit of another tenant names the same path
	for n := range 1000 {
		name := evictedName(c.Tenant, c.Agent, tool, time.Now().UnixMilli(), n)
		if shared {
			name = sharedName(tool, time.Now().UnixMilli(), n)
		}
		path, taken, err := l.keep.save(ctx, name, c.ID, []byte(text))
		if !taken || err != nil {
			return path, err
		}
	}
	return "", fmt.Errorf("no free name for a result of %s", tool)
}

// prefix is the first n characters.
func prefix(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
