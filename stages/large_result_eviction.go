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
	TokenThreshold      int    `yaml:"token-threshold" json:"token-threshold"`
	EvictionDir         string `yaml:"eviction-dir" json:"eviction-dir"` // where eviction-store is dir
	PreserveSampleChars int    `yaml:"preserve-sample-chars" json:"preserve-sample-chars"`
	EvictionStore       string `yaml:"eviction-store" json:"eviction-store"` // object | dir
}

func largeResultEvictionDefaults() LargeResultEvictionConfig {
	return LargeResultEvictionConfig{TokenThreshold: 20000, EvictionDir: "/tmp/agent-evict", PreserveSampleChars: 500, EvictionStore: evictToObject}
}

const (
	evictToObject = "object"
	evictToDir    = "dir"
	// noteEvicted is true where the reply is the summary of an evicted result.
	noteEvicted = "tool.evicted"
	// failedSample is how many times the sample's characters are kept when the whole cannot be saved (S0-EVICT-6).
	failedSample = 4
)

func (c *LargeResultEvictionConfig) validate() error {
	switch {
	case c.TokenThreshold < 1:
		return fmt.Errorf("token-threshold: %d; need at least 1", c.TokenThreshold)
	case c.PreserveSampleChars < 0:
		return fmt.Errorf("preserve-sample-chars: %d; need 0 or more", c.PreserveSampleChars)
	case c.EvictionStore != evictToObject && c.EvictionStore != evictToDir:
		return fmt.Errorf("eviction-store: %q; known: object, dir", c.EvictionStore)
	case c.EvictionStore == evictToDir && c.EvictionDir == "":
		return fmt.Errorf("eviction-dir: empty; name a directory or set eviction-store to object")
	}
	return nil
}

type largeResultEviction struct {
	cfg   LargeResultEvictionConfig
	tools toolPolicies
	keep  evictionStore
	log   *slog.Logger
}

// newLargeResultEviction makes the stage that moves a large result out of the way of the model (S0-EVICT-1 to 7). A
// result of more than token-threshold tokens, a quarter of its characters, is saved whole and replaced by its first
// characters, the path and the size. A tool may have a limit of its own, or none (max-result). It stands inner to the
// cache, so that a hit is never larger than a miss.
//
// The path is <agent>/<tool>_<milliseconds>.txt, with the tenant before it where it is not the default one; each part
// passes messages.Token. ReadEvicted reads parts back. If the whole cannot be saved, four times as many characters and
// a marker stay, and no path is named (EV-6).
func newLargeResultEviction(cfg *LargeResultEvictionConfig, d Deps) (pipeline.Stage, error) {
	if err := cfg.validate(); err != nil {
		return pipeline.Stage{}, err
	}
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	l := &largeResultEviction{cfg: *cfg, tools: tools, log: d.Log}
	s := pipeline.Stage{After: l.after, Reads: []string{"reply"}, Writes: []string{"reply"}}
	if cfg.EvictionStore == evictToDir {
		dir := evictedDir{cfg.EvictionDir}
		l.keep, s.Sweep, s.SweepEvery = dir, dir.sweep, time.Hour
	} else {
		l.keep = evictedObjects{d.Objects, d.Store}
	}
	return s, nil
}

func (l *largeResultEviction) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if c.Fault != nil || !c.HasReply() || c.Flag(noteEvicted) {
		return pipeline.Continue(), nil
	}
	// Structured content beside a text is the same result for programs; if it alone is large, it is what is saved.
	raw := c.ReplyBytes()
	if s := c.Notes[toolspec.NoteStructured]; len(s) > len(raw) {
		raw = s
	}
	limit := l.limit(ctx, c)
	if limit < 0 || len(raw)/4 <= limit {
		return pipeline.Continue(), nil // no more characters than bytes
	}
	text, ok := messages.IsString(raw)
	if !ok {
		text = string(raw)
	}
	chars := utf8.RuneCountInString(text)
	if chars/4 <= limit {
		return pipeline.Continue(), nil
	}
	size := fmt.Sprintf("[原始大小: %d chars, Token≈%d]", chars, chars/4)
	path, err := l.save(ctx, c, text)
	if err != nil {
		l.log.WarnContext(ctx, "large result not saved; it is cut", "call", c.ID, "tool", c.Tool, "chars", chars, "err", err)
		c.SetReply([]byte(prefix(text, failedSample*l.cfg.PreserveSampleChars) + "...\n[结果过长,保存失败,已截断]\n" + size))
	} else {
		c.SetReply([]byte(prefix(text, l.cfg.PreserveSampleChars) + "...\n[完整结果已保存至: " + path + "]\n" + size))
		c.Note(noteEvicted, true)
	}
	c.Unnote(toolspec.NoteStructured)
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
	ctx, cancel := settleContext(ctx)
	defer cancel()
	tool, _, _ := cutVersion(c.Tool)
	for n := range 1000 {
		name := evictedName(c.Tenant, c.Agent, tool, time.Now().UnixMilli(), n)
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
