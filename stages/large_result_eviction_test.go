package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// memoryObjects is an object store in this process.
type memoryObjects struct {
	mu   sync.Mutex
	data map[string][]byte
	err  error
}

func (m *memoryObjects) Put(_ context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if m.data == nil {
		m.data = map[string][]byte{}
	}
	m.data[name] = append([]byte(nil), data...)
	return nil
}

func (m *memoryObjects) Get(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if raw, ok := m.data[name]; ok {
		return raw, nil
	}
	return nil, pipeline.ErrNotFound
}

// evictions is a chain and where it evicts to.
type evictions struct {
	*toolChain
	objects *memoryObjects
	reader  evicted.Reader
}

func bothEvictions(t *testing.T, test func(t *testing.T, make func(config string, tools ...chainTool) evictions)) {
	for _, where := range []string{"object", "dir"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			test(t, func(config string, tools ...chainTool) evictions {
				o := &memoryObjects{}
				e := evictions{objects: o, reader: evicted.Reader{Objects: o}}
				yaml := "{eviction-store: object, " + config + "}"
				if where == "dir" {
					dir := t.TempDir()
					e.reader = evicted.Reader{Dir: dir}
					yaml = fmt.Sprintf("{eviction-store: dir, eviction-dir: %q, %s}", dir, config)
				}
				e.toolChain = newToolChain(t, stages.Deps{Objects: o}, map[string]string{"large-result-eviction": yaml}, tools...)
				return e
			})
		})
	}
}

func (e evictions) send(t testing.TB, name, agent string) *messages.Call {
	t.Helper()
	c := toolCall(name, `{}`)
	c.Agent, c.Tenant = agent, "default"
	return e.Call(t, t.Context(), c)
}

// path is what the summary says.
func path(t testing.TB, c *messages.Call) string {
	t.Helper()
	text, ok := c.ReplyText()
	require.True(t, ok)
	_, rest, found := strings.Cut(text, "[完整结果已保存至: ")
	require.True(t, found, text)
	p, _, _ := strings.Cut(rest, "]")
	return p
}

func whole(t testing.TB, r evicted.Reader, tenant, at string) string {
	t.Helper()
	var all strings.Builder
	for next := 0; ; {
		p, err := evicted.Read(t.Context(), r, tenant, at, next, 7777)
		require.NoError(t, err)
		require.Equal(t, next, p.Offset)
		all.WriteString(p.Text)
		if next = p.Next; next == 0 {
			require.Equal(t, p.Total, utf8.RuneCountInString(all.String()))
			return all.String()
		}
	}
}

func TestEviction(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("a", 85000)
	bothEvictions(t, func(t *testing.T, make func(string, ...chainTool) evictions) {
		t.Run("up to the limit it stays (EV-1 S0-EVICT-3)", func(t *testing.T) {
			e := make("enabled: true", gives(reading("t"), strings.Repeat("a", 80000)),
				gives(reading("u"), strings.Repeat("a", 80003)), gives(reading("v"), strings.Repeat("a", 80004)))
			for name, n := range map[string]int{"t": 80000, "u": 80003} {
				text, _ := e.send(t, name, "").ReplyText()
				require.Len(t, text, n)
			}
			path(t, e.send(t, "v", ""))
		})
		t.Run("above it the whole is saved (EV-3 EV-4 EV-5)", func(t *testing.T) {
			e := make("enabled: true", gives(reading("t"), big), gives(reading("n"), big),
				gives(reading("j"), `{"v":"`+big+`"}`), gives(reading("q"), string(rawjson.Encode(big))))
			out := e.send(t, "t", "g1")
			at := path(t, out)
			text, _ := out.ReplyText()
			require.Equal(t, big[:500]+"...\n[完整结果已保存至: "+at+"]\n[原始大小: 85000 chars, Token≈21250]",
				text, "S0-EVICT-5")
			require.Equal(t, big, whole(t, e.reader, "default", at), "EV-4")
			dir, file := filepath.Split(at)
			require.True(t, strings.HasSuffix(dir, "/g1/"), at)
			require.Regexp(t, `^t_\d+(_\d+)?\.txt$`, file)
			if e.reader.Dir != "" {
				raw, err := os.ReadFile(at)
				require.NoError(t, err)
				require.Equal(t, big, string(raw))
				info, err := os.Stat(at)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode())
			} else {
				require.True(t, strings.HasPrefix(at, "shallot-evicted/g1/"), at)
			}
			require.Contains(t, path(t, e.send(t, "n", "")), "/default/n_")
			require.Equal(t, `{"v":"`+big+`"}`, whole(t, e.reader, "default", path(t, e.send(t, "j", ""))))
			require.Equal(t, big, whole(t, e.reader, "default", path(t, e.send(t, "q", ""))), "a JSON string is its text")
		})
		t.Run("a hit is no larger (X-5)", func(t *testing.T) {
			e := make("enabled: true", gives(reading("t"), big))
			first, second := e.send(t, "t", ""), e.send(t, "t", "")
			require.True(t, second.Flag(messages.NoteCacheHit))
			require.Equal(t, first.Reply(), second.Reply())
			require.Equal(t, 1, e.Runs("t"))
		})
		t.Run("characters are counted, not bytes (EV-9)", func(t *testing.T) {
			cjk := strings.Repeat("汉字👍", 10000)
			e := make("token-threshold: 1000, preserve-sample-chars: 2", gives(reading("t"), cjk))
			out := e.send(t, "t", "")
			text, _ := out.ReplyText()
			require.True(t, strings.HasPrefix(text, "汉字...\n["))
			require.Contains(t, text, "30000 chars, Token≈7500")
			require.Equal(t, cjk, whole(t, e.reader, "default", path(t, out)))
		})
		t.Run("switched off, all of it passes (EV-10)", func(t *testing.T) {
			e := make("enabled: false", gives(reading("t"), strings.Repeat("a", 1<<20)))
			text, _ := e.send(t, "t", "").ReplyText()
			require.Len(t, text, 1<<20)
		})
		t.Run("max-result (EV-11)", func(t *testing.T) {
			never, low := reading("never"), reading("low")
			never.MaxResult, low.MaxResult = -1, 10
			part := gives(evicted.Tool(), big)
			e := make("enabled: true", gives(never, big), gives(low, strings.Repeat("a", 44)), part)
			for _, name := range []string{"never", part.Name} {
				c := toolCall(name, `{"path":"x"}`)
				text, _ := e.Call(t, t.Context(), c).ReplyText()
				require.Len(t, text, 85000)
			}
			path(t, e.send(t, "low", ""))
		})
		t.Run("names (EV-12)", func(t *testing.T) {
			long := strings.Repeat("n", 128)
			e := make("enabled: true", gives(reading(long), big))
			for _, agent := range []string{strings.Repeat("ü", 1500), "../../etc", "a/b", "CON", "nul\x00", "."} {
				at := path(t, e.send(t, long, agent))
				require.Less(t, len(filepath.Base(at)), 120)
				require.NotContains(t, strings.TrimPrefix(at, e.reader.Dir), "..")
				require.Equal(t, big, whole(t, e.reader, "default", at))
			}
		})
		t.Run("structured content goes too", func(t *testing.T) {
			e := make("enabled: true", gives(reading("t"),
				toolbox.Result{Content: []byte("short"), Structured: []byte(`{"v":"` + big + `"}`)}))
			out := e.send(t, "t", "")
			require.NotContains(t, out.Notes, messages.NoteStructured)
			require.Equal(t, `{"v":"`+big+`"}`, whole(t, e.reader, "default", path(t, out)))
		})
	})
}

func TestEvictionCollision(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"object", "dir"} {
		t.Run(""+where+" (EV-8)", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				o := &memoryObjects{}
				c := newToolChain(t, stages.Deps{Objects: o}, map[string]string{
					"large-result-eviction": fmt.Sprintf("{eviction-store: %s, eviction-dir: %q}", where, dir), "tool-cache": "off",
				}, chainTool{reading("t"), numberedText})
				r := evicted.Reader{Objects: o, Dir: dir}
				one, two := c.Plain(t, toolCall("t", `{}`)), c.Plain(t, toolCall("t", `{}`))
				require.NotEqual(t, path(t, one), path(t, two))
				require.Equal(t, "1"+strings.Repeat("b", 90000), whole(t, r, "t1", path(t, one)))
				require.Equal(t, "2"+strings.Repeat("b", 90000), whole(t, r, "t1", path(t, two)))
			})
		})
	}
}

func numberedText(_ context.Context, n int, _ json.RawMessage) (toolbox.Result, error) {
	return toolbox.Result{Content: rawjson.Encode(fmt.Sprint(n) + strings.Repeat("b", 90000))}, nil
}

func TestEvictionFailure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, row := range map[string]struct {
		config string
		d      stages.Deps
	}{
		"dir (EV-6)":      {config: fmt.Sprintf("{eviction-store: dir, eviction-dir: %q}", file)},
		"object (EV-6)":   {d: stages.Deps{Objects: &memoryObjects{err: errors.New("full")}}},
		"no store (EV-6)": {},
		"the KV store too (EV-6)": {d: stages.Deps{Objects: &memoryObjects{},
			Store: func(string) pipeline.Store { return harnessDown{} }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			def := reading("t")
			c := newToolChain(t, row.d, map[string]string{"large-result-eviction": row.config},
				gives(def, strings.Repeat("a", 85000)))
			out := c.Run(t, "t", `{}`)
			require.Nil(t, out.Fault, "S0-EVICT-6")
			text, _ := out.ReplyText()
			require.True(t, strings.HasPrefix(text, strings.Repeat("a", 2000)+"...\n["), text[:20])
			require.NotContains(t, text, "完整结果")
			require.Contains(t, text, "已截断")
		})
	}
}

func TestReadEvictedKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	o := &memoryObjects{data: map[string][]byte{"g1/t_1.txt": []byte("default's"), "t1/g1/t_1.txt": []byte("t1's"),
		"secret": []byte("x")}}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "t_1.txt"), []byte("file"), 0o600))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "a", "p_1.txt")))
	r := evicted.Reader{Objects: o, Dir: dir}
	for _, row := range []struct{ tenant, path, want string }{
		{"default", "shallot-evicted/g1/t_1.txt", "default's"}, {"default", "g1/t_1.txt", "default's"},
		{"", "g1/t_1.txt", "default's"},
		{"t1", "shallot-evicted/t1/g1/t_1.txt", "t1's"}, {"default", filepath.Join(dir, "a", "t_1.txt"), "file"},
		{"default", strings.TrimPrefix(filepath.Join(dir, "a", "t_1.txt"), "/"), "file"},
		{"t1", strings.TrimPrefix(filepath.Join(dir, "a", "t_1.txt"), "/"), ""},
		{"default", "t1/g1/t_1.txt", ""}, {"t1", "g1/t_1.txt", ""}, {"t2", "t1/g1/t_1.txt", ""}, {"default", "secret", ""},
		{"default", "../a/t_1.txt", ""}, {"default", "a/../a/t_1.txt", ""}, {"default", "/etc/passwd", ""},
		{"default", "a/p_1.txt", ""}, {"default", "", ""},
	} {
		p, err := evicted.Read(ctx, r, row.tenant, row.path, 0, 0)
		if row.want == "" {
			var f *messages.Fault
			require.ErrorAs(t, err, &f, row.path)
			require.Equal(t, messages.NotFound, f.Code)
			continue
		}
		require.NoError(t, err, row.path)
		require.Equal(t, row.want, p.Text)
	}
	_, err := evicted.Read(ctx, r, "", "g1/t_1.txt", -1, 0)
	require.Error(t, err)
	p, err := evicted.Read(ctx, r, "", "g1/t_1.txt", 99, 5)
	require.NoError(t, err)
	require.Equal(t, evicted.Part{Offset: 99, Total: 9}, p)
}

func TestEvictionSweepsItsDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newToolChain(t, stages.Deps{},
		map[string]string{"large-result-eviction": fmt.Sprintf("{eviction-store: dir, eviction-dir: %q}", dir)},
		gives(reading("t"), strings.Repeat("a", 85000)))
	old, young := path(t, c.Plain(t, toolCall("t", `{"a":1}`))), path(t, c.Plain(t, toolCall("t", `{"a":2}`)))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-24*time.Hour)))
	require.NoError(t, c.stage(t, "large-result-eviction").Sweep(t.Context()))
	require.NoFileExists(t, old)
	require.FileExists(t, young, "kept for 24 h")
}

// Whatever is evicted can be read back whole, and what stays is valid text within its bounds.
func TestEvictionProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringN(0, 400, -1).Draw(rt, "text") + "."
		agent := rapid.String().Draw(rt, "agent")
		o := &memoryObjects{}
		c := newToolChain(t, stages.Deps{Objects: o},
			map[string]string{"large-result-eviction": "{token-threshold: 20, preserve-sample-chars: 10}"},
			gives(reading("t"), string(rawjson.Encode(text))))
		call := toolCall("t", `{}`)
		call.Agent = agent
		out := c.Call(t, t.Context(), call)
		got, _ := out.ReplyText()
		if utf8.RuneCountInString(text)/4 <= 20 {
			raw, _ := rawjson.IsString(out.Reply())
			require.Equal(rt, text, raw)
			return
		}
		require.True(rt, utf8.ValidString(got))
		_, rest, _ := strings.Cut(got, "[完整结果已保存至: ")
		at, _, _ := strings.Cut(rest, "]")
		p, err := evicted.Read(t.Context(), evicted.Reader{Objects: o}, "t1", at, 0, 0)
		require.NoError(rt, err)
		require.Equal(rt, text, p.Text)
	})
}
