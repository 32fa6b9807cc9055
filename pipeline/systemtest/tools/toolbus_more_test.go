package tools_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// evictedPath is the path that a summary names.
func evictedPath(t *testing.T, c *messages.Call) string {
	t.Helper()
	text, ok := c.ReplyText()
	require.True(t, ok, "%v", c.Fault)
	_, rest, found := strings.Cut(text, "[完整结果已保存至: ")
	require.True(t, found, "%.200s", text)
	path, _, _ := strings.Cut(rest, "]")
	return path
}

// whole reads an evicted result back over the bus, part by part, with the tool for it.
func (b *rowBus) whole(t *testing.T, path string, set ...func(*pipeline.Request)) string {
	t.Helper()
	var out strings.Builder
	for at := 0; ; {
		c := b.do(t, "readEvictedResult", string(rawjson.Encode(map[string]any{"path": path, "offset": at, "limit": 50000})),
			set...)
		require.Nil(t, c.Fault)
		require.Empty(t, fallback(c), "%s", c.Reply())
		part := gjson.ParseBytes(c.Reply())
		text := part.Get("text").String()
		out.WriteString(text)
		at += len([]rune(text))
		if text == "" || int64(at) >= part.Get("total").Int() {
			return out.String()
		}
	}
}

func agent(name string) func(*pipeline.Request) { return func(r *pipeline.Request) { r.Agent = name } }

func pass(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }

func evictionRows(t *testing.T, b *rowBus, dir string) {
	long := func(row string) string { return `{"row":"` + row + `","text":"a","chars":85000}` }
	t.Run("a result at the threshold stays (EV-1)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "big", `{"row":"EV-1","text":"a","chars":80000}`)
		require.Equal(t, `"`+strings.Repeat("a", 80000)+`"`, string(c.Reply()))
		for chars, whole := range map[int]bool{80000: true, 80003: true, 80004: false} { // characters, whatever their bytes
			c = b.do(t, "big", fmt.Sprintf(`{"row":"EV-1 %d","text":"中","chars":%d}`, chars, chars))
			require.Equal(t, whole, string(c.Reply()) == `"`+strings.Repeat("中", chars)+`"`, "%d", chars)
		}
	})
	t.Run("a larger result leaves its beginning, a path and its size, and is read back unchanged (EV-3 EV-4 EV-5)",
		func(t *testing.T) {
			t.Parallel()
			c := b.do(t, "big", long("EV-3"), agent("g1"))
			path := evictedPath(t, c)
			text, _ := c.ReplyText()
			require.Equal(t, strings.Repeat("a", 500)+"...\n[完整结果已保存至: "+path+
				"]\n[原始大小: 85000 chars, Token≈21250]", text)
			require.Equal(t, strings.Repeat("a", 85000), b.whole(t, path))
			require.Regexp(t, `(^|/)g1/big_\d+(_\d+)?\.txt$`, path)
			if dir != "" {
				raw, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, strings.Repeat("a", 85000), string(raw))
				require.True(t, strings.HasPrefix(path, dir), path)
			}
			theirs := b.do(t, "readEvictedResult", string(rawjson.Encode(map[string]any{"path": path})), tenant("other"))
			require.NotNil(t, theirs.Fault, "another tenant's")
			require.Equal(t, messages.NotFound, theirs.Fault.Code)
		})
	t.Run("two results of the same moment do not overwrite each other (EV-8)", func(t *testing.T) {
		t.Parallel()
		paths := make([]string, 8)
		var wg sync.WaitGroup
		for i := range paths {
			wg.Go(func() {
				c := b.do(t, "low", fmt.Sprintf(`{"row":"EV-8","text":"%d","chars":5000}`, i))
				paths[i] = evictedPath(t, c)
			})
		}
		wg.Wait()
		for i, p := range paths {
			require.Equal(t, strings.Repeat(fmt.Sprint(i), 5000), b.whole(t, p))
		}
	})
	t.Run("sizes count characters, and none is cut in two (EV-9)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "low", `{"row":"EV-9","text":"中😀","chars":15000}`)
		text, _ := c.ReplyText()
		require.True(t, strings.HasPrefix(text, strings.Repeat("中😀", 250)+"..."), "%.60s", text)
		require.Contains(t, text, "[原始大小: 30000 chars, Token≈7500]")
		require.Equal(t, strings.Repeat("中😀", 15000), b.whole(t, evictedPath(t, c)))
	})
	t.Run("a part that is read back is not moved away again (EV-11)", func(t *testing.T) {
		t.Parallel()
		path := evictedPath(t, b.do(t, "big", `{"row":"EV-11","text":"b","chars":200000}`))
		c := b.do(t, "readEvictedResult", string(rawjson.Encode(map[string]any{"path": path, "limit": 80000})))
		require.NotContains(t, string(c.Reply()), "完整结果已保存至")
		require.GreaterOrEqual(t, len(gjson.GetBytes(c.Reply(), "text").String()), 80000)
	})
	t.Run("very long names still make a file (EV-12)", func(t *testing.T) {
		t.Parallel()
		path := evictedPath(t, b.do(t, "big", long("EV-12"), agent(strings.Repeat("n", 1500))))
		for part := range strings.SplitSeq(path, "/") {
			require.LessOrEqual(t, len(part), 255)
		}
		require.Len(t, b.whole(t, path), 85000)
	})
}

// TestRowsDir: results are evicted to a directory; the caller executes the retries; the cache is small.
func TestRowsDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := startRows(t,
		"tool-retry: {executed-by: caller}, tool-cache: {ttl: 1s, sweep: 1s, max-entries: 10}, large-result-eviction: "+
			"{eviction-store: dir, eviction-dir: "+dir+"}", "", rowTools,
		pipeline.Stage{Name: "asker", Kind: messages.Tool, Order: 60, Before: pass})
	t.Run("before any look-up the hit rate is zero (CA-11)",
		func(t *testing.T) { require.Equal(t, 0.0, b.details("tool-cache")["hitRate"]) })
	t.Run("the hit rate has three decimals (CA-12)", func(t *testing.T) {
		for range 3 {
			b.do(t, "get_long", `{"row":"CA-12"}`)
		}
		d := b.details("tool-cache")
		require.Equal(t, []any{int64(2), int64(1), 0.667}, []any{d["cacheHits"], d["cacheMisses"], d["hitRate"]})
	})
	t.Run("the cache never holds more than its limit, and the sweep empties it (CA-13 CA-7)", func(t *testing.T) {
		for i := range 25 {
			b.do(t, "get_a", fmt.Sprintf(`{"row":"CA-13","i":%d}`, i))
		}
		require.LessOrEqual(t, b.details("tool-cache")["cacheSize"], 10)
		require.Eventually(t, func() bool { return b.details("tool-cache")["cacheSize"].(int) <= 1 }, 30*time.Second,
			100*time.Millisecond,
			"CA-7: gone without a look-up, but the one that stays an hour")
	})
	t.Run("at its exact age an entry is gone; a tool may keep its results for longer (CA-6 CA-16)", func(t *testing.T) {
		b.do(t, "get_long", `{"row":"CA-16"}`)
		b.do(t, "get_a", `{"row":"CA-6"}`)
		require.Eventually(t, func() bool { return !hit(b.do(t, "get_a", `{"row":"CA-6"}`)) }, 30*time.Second,
			100*time.Millisecond)
		require.Equal(t, 2, b.count("CA-6"))
		require.True(t, hit(b.do(t, "get_long", `{"row":"CA-16"}`)), "a time to live of its own")
	})
	t.Run("a caller that tries itself finds the mark and the pause (RT-6)", func(t *testing.T) {
		t.Parallel()
		c := b.do(t, "retried", `{"row":"RT-6","fail":9,"text":"x"}`)
		require.Equal(t, 1, b.count("RT-6"))
		require.True(t, c.Flag(messages.NoteShouldRetry))
		var ms int
		c.Noted(messages.NoteSuggestedDelay, &ms)
		require.Equal(t, 500, ms)
		require.Equal(t, 2, b.details("tool-retry")["maxRetries"])
		require.Equal(t, int64(500), b.details("tool-retry")["baseDelayMs"])
		m := ask(t, b.Conn, "shallot.v1.tool.request.retried", `{"row":"RT-6 again","fail":1,"text":"x"}`)
		require.Equal(t, []string{"true", "500", "true", "500", "1"},
			[]string{m.Header.Get("Shallot-Should-Retry"), m.Header.Get("Shallot-Suggested-Delay-Ms"),
				m.Header.Get("X-Should-Retry"), m.Header.Get("Retry-After-Ms"), m.Header.Get("Retry-After")},
			"the marks are answer headers")
		m = ask(t, b.Conn, "shallot.v1.tool.request.retried", `{"row":"RT-6 again","fail":1,"text":"x"}`)
		require.Equal(t, `{"run":2}`, string(m.Data), "the caller tried again")
		require.Empty(t, m.Header.Get("Shallot-Should-Retry")+m.Header.Get("X-Should-Retry"))
	})
	evictionRows(t, b, dir)
}

// TestRowsOff: nothing is evicted, nothing is retried.
func TestRowsOff(t *testing.T) {
	t.Parallel()
	b := startRows(t, "tool-retry: {max-retries: 0}, large-result-eviction: {enabled: false}", "",
		"    - {name: t, executor: \"go:script\", effect: read, cache: \"off\"}\n")
	t.Run("no retries still means one try (RT-8)", func(t *testing.T) {
		b.do(t, "t", `{"row":"RT-8","fail":9,"text":"x"}`)
		require.Equal(t, 1, b.count("RT-8"))
	})
	t.Run("switched off, eviction leaves everything (EV-10)", func(t *testing.T) {
		c := b.do(t, "t", `{"row":"EV-10","text":"a","chars":1000000}`)
		require.Len(t, c.Reply(), 1000002)
		m := ask(t, b.Conn, "shallot.v1.tool.request.t", `{"row":"EV-10 small","text":"a","chars":900000}`)
		require.Len(t, m.Data, 900002)
	})
}

// TestRowsLimited: only one tool is retried; the directory for large results cannot be written to; delays are spread.
func TestRowsLimited(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "no-directory")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	b := startRows(t,
		"tool-retry: {tools: [a], base-delay: 40ms, multiplier: 2, max-delay: 50ms, jitter: 0.25}, "+
			"large-result-eviction: {eviction-store: dir, eviction-dir: "+file+"/x}", "",
		"    - {name: a, executor: \"go:script\", effect: read, cache: \"off\"}\n"+
			"    - {name: b, executor: \"go:script\", effect: read, cache: \"off\"}\n")
	t.Run("retry can be limited to some tools (RT-11)", func(t *testing.T) {
		b.do(t, "b", `{"row":"RT-11 b","fail":9,"text":"x"}`)
		b.do(t, "a", `{"row":"RT-11 a","fail":9,"text":"x"}`)
		require.Equal(t, []int{1, 3}, []int{b.count("RT-11 b"), b.count("RT-11 a")})
	})
	t.Run("pauses double up to their maximum, spread by the jitter (RT-4 RT-12 RT-13)", func(t *testing.T) {
		gaps := b.gaps("RT-11 a")
		require.GreaterOrEqual(t, gaps[0], 30*time.Millisecond, "40 ms less a quarter")
		require.GreaterOrEqual(t, gaps[1], 37*time.Millisecond, "80 ms, at most 50, less a quarter")
	})
	t.Run("without a place to write, a longer beginning stays and no path is named (EV-6)", func(t *testing.T) {
		c := b.do(t, "a", `{"row":"EV-6","text":"a","chars":85000}`)
		require.Nil(t, c.Fault)
		text, _ := c.ReplyText()
		require.True(t, strings.HasPrefix(text, strings.Repeat("a", 2000)+"...\n["), "%.60s", text)
		require.NotContains(t, text, file)
		require.NotContains(t, text, "已保存至", "no path is claimed")
		require.Contains(t, text, "已截断")
		require.Contains(t, text, "[原始大小: 85000 chars, Token≈21250]")
	})
}

// TestRowsStoreGone: EV-6 where the object store is the one that fails.
func TestRowsStoreGone(t *testing.T) {
	t.Parallel()
	b := startRows(t, "", "", "    - {name: a, executor: \"go:script\", effect: read, cache: \"off\"}\n")
	js, err := jetstream.New(b.Conn)
	require.NoError(t, err)
	require.NoError(t, js.DeleteObjectStore(t.Context(), jet.EvictedObjects))
	c := b.do(t, "a", `{"row":"EV-6","text":"中","chars":85000}`)
	require.Nil(t, c.Fault)
	text, _ := c.ReplyText()
	require.True(t, strings.HasPrefix(text, strings.Repeat("中", 2000)+"...\n["), "%.60s", text)
	require.NotContains(t, text, "已保存至")
	require.Contains(t, text, "已截断")
}

// TO-7 over the bus is TestToolConcurrency; AR over the bus: the arguments as the tool gets them.
func TestRowsArguments(t *testing.T) {
	t.Parallel()
	var tools strings.Builder
	add := func(name, schema string) {
		tools.WriteString("    - {name: " + name + ", executor: \"go:echo\", effect: read, cache: \"off\", input-schema: " +
			schema + "}\n")
	}
	for _, typ := range []string{"string", "integer", "number", "boolean", "array", "object", "date"} {
		add("ar_"+typ, `{"type":"object","properties":{"v":{"type":"`+typ+`"}}}`)
		add("ar_req_"+typ, `{"type":"object","properties":{"v":{"type":"`+typ+`"}},"required":["v"]}`)
	}
	add("ar_int32", `{"type":"object","properties":{"v":{"type":"integer","format":"int32"}}}`)
	add("ar_int64", `{"type":"object","properties":{"v":{"type":"integer","format":"int64"}}}`)
	add("ar_default", `{"type":"object","properties":{"v":{"type":"integer","default":"7"}}}`)
	add("ar_req_default", `{"type":"object","properties":{"v":{"type":"integer","default":7}},"required":["v"]}`)
	add("ar_three",
		`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"boolean"}},`+
			`"required":["b","c"]}`)
	h := toolHost(t, "tool:\n  tools:\n"+tools.String())
	for _, r := range []struct{ row, tool, in, out string }{ // no out: refused
		{"text comes from text, numbers and booleans (AR-1)", "string", `"x" 3 3.5 true`, `"x" "3" "3.5" "true"`},
		{"lists and objects are not text (AR-2)", "string", `[1] {}`, ``},
		{"whole numbers are integers, however they are written (AR-4)", "int32", `3 3.0 -0.0 2147483647.0`,
			`3 3 0 2147483647`},
		{"fractions and what is out of range are not integers (AR-5)", "int32", `3.5 1e10 2147483648 2147483648.0 "NaN"`, ``},
		{"text that spells an integer is one (AR-6)", "int32", `"3" "\u00203\u0020" "+3" "-0" "-2147483648"`,
			`3 3 3 0 -2147483648`},
		{"other text is not an integer (AR-7)", "int32", `"3.0" "1e3" "2147483648" "abc" "0x10" "1_000" ""`, ``},
		{"booleans, lists and objects are not integers (AR-8)", "integer", `true [] {}`, ``},
		{"numbers pass unchanged (AR-9)", "number", `3 3.5 12345678901234567890`, `3 3.5 12345678901234567890`},
		{"text that spells a decimal number is one (AR-10)", "number", `"3.14" "\u00203\u0020" "1e3" ".5" "5."`,
			`3.14 3 1e3 0.5 5`},
		{"other text is not a number (AR-11)", "number", `"abc" "1,5" "" true []`, ``},
		{"words and notations that JSON does not have are not numbers (AR-12)", "number", `"NaN" "Infinity" "3d" "0x1p3"`,
			``},
		{"the two words are booleans in any case (AR-13)", "boolean", `true "true" "TRUE" "False"`, `true true true false`},
		{"nothing else is a boolean (AR-14)", "boolean", `"1" "yes" "\u0020true\u0020" "" 1 0`, ``},
		{"lists and objects pass unchanged (AR-15)", "array", `[1]`, `[1]`},
		{"lists and objects pass unchanged (AR-15)", "object", `{}`, `{}`},
		{"text is never read as a list or an object, nor one as the other (AR-16)", "array", `"[1]" {}`, ``},
		{"text is never read as a list or an object, nor one as the other (AR-16)", "object", `"{}" []`, ``},
		{"a type that does not exist takes nothing (AR-18)", "date", `1 "x" []`, ``},
		{"a required argument is missing, or null or blank (AR-19)", "req_string", `null "" "\u0020\u0020\u0020" "\t\n"`, ``},
		{"false, zero and empty lists and objects are values (AR-20)", "req_boolean", `false`, `false`},
		{"false, zero and empty lists and objects are values (AR-20)", "req_integer", `0`, `0`},
		{"false, zero and empty lists and objects are values (AR-20)", "req_array", `[]`, `[]`},
		{"false, zero and empty lists and objects are values (AR-20)", "req_object", `{}`, `{}`},
		{"optional text keeps its blanks (AR-28)", "string", `"" "\u0020\u0020"`, `"" "\u0020\u0020"`},
		{"every kind of white space is blank (AR-29)", "req_string", `"\u3000" "\u00a0" "\u200b"`, ``},
		{"a schema may ask for 64 bits (AR-30)", "int64", `3000000000`, `3000000000`},
	} {
		t.Run(r.tool+": "+r.row, func(t *testing.T) {
			t.Parallel()
			outs := strings.Fields(r.out)
			for i, in := range strings.Fields(r.in) {
				m := ask(t, h.Conn, "shallot.v1.tool.request.ar_"+r.tool, `{"v":`+in+`}`)
				if r.out == "" {
					require.Equal(t, string(messages.InvalidArguments), m.Header.Get("Shallot-Fault"), "%s: %s", in, m.Data)
					require.Equal(t, "v", gjson.GetBytes(m.Data, "error.param").String())
					continue
				}
				require.JSONEq(t, `{"v":`+outs[i]+`}`, string(m.Data), in)
				if strings.HasSuffix(r.row, "(AR-9)") {
					require.Equal(t, `{"v":`+outs[i]+`}`, string(m.Data))
				}
			}
		})
	}
	for _, r := range []struct{ row, tool, in, out string }{ // out: a result, or what the fault's text holds
		{"a required argument is missing, or null or blank (AR-19)", "req_string", `{}`, "'v': required, but it is missing"},
		{"a default does not make a required argument optional (AR-21)", "req_default", `{}`,
			"'v': required, but it is missing"},
		{"a default is used as it is written: absent (AR-22)", "default", `{}`, `{"v":"7"}`},
		{"a default is used as it is written: null (AR-22)", "default", `{"v":null}`, `{"v":"7"}`},
		{"without a default an optional argument is absent: absent (AR-23)", "integer", `{}`, `{}`},
		{"without a default an optional argument is absent: null (AR-23)", "integer", `{"v":null}`, `{}`},
		{"names that the schema lacks do not reach the tool (AR-26)", "integer", `{"v":1,"w":2}`, `{"v":1}`},
		{"a tool that needs no arguments runs without (AR-27)", "integer", ``, `{}`},
	} {
		t.Run(r.row, func(t *testing.T) {
			t.Parallel()
			m := ask(t, h.Conn, "shallot.v1.tool.request.ar_"+r.tool, r.in)
			if strings.HasPrefix(r.out, "{") {
				require.Equal(t, r.out, string(m.Data))
				return
			}
			require.Contains(t, gjson.GetBytes(m.Data, "error.message").String(), r.out)
		})
	}
	t.Run("missing arguments are reported before wrong types (AR-24)", func(t *testing.T) {
		t.Parallel()
		text := gjson.GetBytes(ask(t, h.Conn, "shallot.v1.tool.request.ar_three", `{"a":"x"}`).Data, "error.message").String()
		require.Equal(t, 2, strings.Count(text, "\n- "), text)
		require.NotContains(t, text, "'a'")
	})
	t.Run("wrong types are reported in the order of the schema (AR-25)", func(t *testing.T) {
		t.Parallel()
		text := gjson.GetBytes(ask(t, h.Conn, "shallot.v1.tool.request.ar_three", `{"c":"x","b":"y","a":"x"}`).Data,
			"error.message").String()
		require.Equal(t, 2, strings.Count(text, "\n- "), text)
		require.Less(t, strings.Index(text, "'a'"), strings.Index(text, "'c'"), text)
	})
}
