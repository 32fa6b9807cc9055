package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// feed is what a streaming tool is told to do: to say text n times in pieces of step bytes, to wait for the gate of its
// name after the first piece, and to end with fail.
type feed struct {
	Gate string `json:"gate"`
	Text string `json:"text"`
	N    int    `json:"n"`
	Step int    `json:"step"`
	Fail string `json:"fail"`
	// Of a NATS tool: lose leaves the second piece out; whole sends the whole result in the answer too.
	Lose  bool `json:"lose"`
	Whole bool `json:"whole"`
}

func (f feed) args() string { return string(rawjson.Encode(f)) }

func (f feed) all() string { return strings.Repeat(f.Text, f.N) }

func (f feed) pieces(give func(string), gate func(string) error) error {
	for rest, i := f.all(), 0; rest != ""; i++ {
		n := min(f.Step, len(rest))
		give(rest[:n])
		rest = rest[n:]
		if i == 0 && f.Gate != "" {
			if err := gate(f.Gate); err != nil {
				return err
			}
		}
	}
	return nil
}

// streamHost is an installation with a streaming Go function and a streaming NATS worker.
type streamHost struct {
	*host.Host
	gates map[string]chan struct{}
	left  chan error // why a run at a gate was given up
}

func startStreams(t *testing.T, yaml string) *streamHost {
	t.Helper()
	h := &streamHost{gates: map[string]chan struct{}{"1": make(chan struct{}), "2": make(chan struct{}),
		"3": make(chan struct{}), "4": make(chan struct{}), "5": make(chan struct{})}, left: make(chan error, 1)}
	h.Host = apitest.Host(t, "texts: zh\n"+yaml+`
tool:
  tools:
    - {name: feed, executor: "go:feed", effect: read, timeout: 30s}
    - {name: endless, executor: "nats:tools.feed", effect: read, max-result: -1, timeout: 30s}
    - {name: worker, executor: "nats:tools.feed", effect: read, timeout: 30s}
`, func(o *host.Options) {
		o.Funcs = toolbox.GoFuncs{"feed": func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			var f feed
			if err := json.Unmarshal(inv.Arguments, &f); err != nil {
				return toolbox.Result{}, err
			}
			inv.Progress([]byte(`{"progress":1}`))
			err := f.pieces(inv.Chunk, func(gate string) error {
				select {
				case <-h.gates[gate]:
					return nil
				case <-ctx.Done():
					h.left <- context.Cause(ctx)
					return ctx.Err()
				}
			})
			if err == nil && f.Fail != "" {
				err = errors.New(f.Fail)
			}
			return toolbox.Result{}, err
		}}
	})
	serveFeed(t, h.Conn, "tools.feed", func(gate string) error { <-h.gates[gate]; return nil })
	return h
}

// serveFeed is a streaming tool worker as anybody would write one.
func serveFeed(t *testing.T, nc *nats.Conn, subject string, gate func(string) error) {
	t.Helper()
	s, err := micro.AddService(nc, micro.Config{Name: "feed", Version: "1.0.0"})
	require.NoError(t, err)
	require.NoError(t, s.AddEndpoint("feed", micro.HandlerFunc(func(r micro.Request) {
		go func() {
			var f feed
			_ = json.Unmarshal(r.Data(), &f)
			n := 0
			_ = f.pieces(func(text string) {
				if n++; n == 2 && f.Lose {
					return
				}
				_ = nc.PublishMsg(&nats.Msg{Subject: r.Headers().Get("Shallot-Chunks"), Data: []byte(text),
					Header: nats.Header{"Shallot-Chunk": {strconv.Itoa(n)}}})
			}, gate)
			switch {
			case f.Fail != "":
				_ = r.Error("500", f.Fail, nil)
			case f.Whole:
				_ = r.Respond([]byte(f.all()))
			default:
				_ = r.Respond(nil, micro.WithHeaders(micro.Headers{"Shallot-Chunks": {strconv.Itoa(n)}}))
			}
		}()
	}), micro.WithEndpointSubject(subject)))
	require.NoError(t, nc.Flush())
}

// read follows a streamed call. first is called with the first text.
func (h *streamHost) read(t *testing.T, tool string, f feed, first func()) (before, whole string, c *messages.Call,
	fault *messages.Fault) {
	t.Helper()
	p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: tool, Body: []byte(f.args()),
		Agent: "g1", Stream: true})
	require.NoError(t, err)
	return follow(t, p, first)
}

func follow(t *testing.T, p pipeline.Pending, first func()) (before, whole string, c *messages.Call,
	fault *messages.Fault) {
	t.Helper()
	var follower stream.ToolFollower
	var text strings.Builder
	read := func(chunks [][]byte) {
		for _, chunk := range chunks {
			piece, _ := chat.ToolChunkText(chunk)
			if piece != "" && text.Len() == 0 && first != nil {
				first()
			}
			text.WriteString(piece)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := p.Wait(ctx, func(d pipeline.Delta) { read(follower.Delta(d)) })
	require.NoError(t, err)
	before = text.String()
	chunks, fault := follower.End(c)
	read(chunks)
	return before, text.String(), c, fault
}

func TestStreamedTools(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"spread": "",
		"fused": "bus: {fusion: true}\nagent: {interceptor: {large-result-eviction: {eviction-store: dir, eviction-dir: " +
			t.TempDir() + "}}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startStreams(t, yaml)
			big := feed{Gate: "1", Text: "a汉", N: 42500, Step: 1000}
			t.Run("of a stream the beginning passes at once, the rest is replaced, and a late error still shows (EV-13)",
				func(t *testing.T) {
					// it goes on only when its first chunk was seen
					before, whole, c, fault := h.read(t, "feed", big, func() { close(h.gates["1"]) })
					require.Nil(t, fault)
					require.True(t, strings.HasPrefix(big.all(), before))
					require.Greater(t, utf8.RuneCountInString(before), 79000, "chunks before the limit pass at once")
					path := evictedPath(t, c)
					require.Equal(t, before+"...\n[完整结果已保存至: "+path+"]\n[原始大小: 85000 chars, Token≈21250]",
						whole, "the rest is replaced")
					require.LessOrEqual(t, utf8.RuneCountInString(whole)/4, 20000)
					require.Equal(t, big.all(), (&rowBus{Host: h.Host}).whole(t, path))
					again, hit, second, fault := h.read(t, "feed", big, nil)
					require.Nil(t, fault)
					require.True(t, second.Flag(messages.NoteCacheHit))
					require.Equal(t, []string{"", whole}, []string{again, hit})
					require.Equal(t, whole, string(ask(t, h.Conn, "shallot.v1.tool.request.feed", big.args()).Data),
						"a hit without a stream")
				})
			t.Run("the source fails after the limit (EV-13)", func(t *testing.T) {
				for _, tool := range []string{"feed", "worker"} {
					_, whole, c, fault := h.read(t, tool, feed{Text: "b", N: 90000, Step: 5000, Fail: "the disk is gone"}, nil)
					require.NotNil(t, fault)
					require.Equal(t, []any{messages.StreamCut, messages.ToolError}, []any{fault.Code, fault.Last})
					require.Contains(t, fault.Message, "the disk is gone")
					require.NotContains(t, whole, "已保存")
					require.Equal(t, []any{1, ""}, []any{c.Slip.Tries, fallback(c)}, "it does not run again, and nothing stands in")
				}
			})
			t.Run("within the limit (EV-13 EV-1)", func(t *testing.T) {
				exact := feed{Text: "c", N: 80000, Step: 7001}
				_, whole, _, fault := h.read(t, "worker", exact, nil)
				require.Nil(t, fault)
				require.Equal(t, exact.all(), whole)
			})
			t.Run("a result above the largest message", func(t *testing.T) {
				huge := feed{Text: "0123456789", N: 300_000, Step: 500_000}
				before, whole, _, fault := h.read(t, "endless", huge, nil)
				require.Nil(t, fault)
				require.True(t, huge.all() == whole, "%d bytes", len(whole))
				require.True(t, strings.HasPrefix(huge.all(), before), "a slow reader has the rest from the end")
				c := call(t, h.Host, pipeline.Request{Tool: "endless",
					Body: []byte(`{"text":"0123456789","n":300000,"step":400000,"gate":""}`)})
				require.Nil(t, c.Fault)
				out, _, _ := c.ReplyPlain()
				require.Equal(t, len(huge.all()), len(out), "for whom does not stream too")
				data, _ := natsStream(t, h.Conn, "shallot.v1.tool.request.endless", huge.args())
				require.True(t, huge.all() == data)
			})
			t.Run("a lost chunk is a failure", func(t *testing.T) {
				_, _, _, fault := h.read(t, "worker", feed{Text: "d", N: 100, Step: 10, Lose: true}, nil)
				require.NotNil(t, fault)
				require.Equal(t, []any{messages.StreamCut, messages.ToolNetwork}, []any{fault.Code, fault.Last})
				whole := feed{Text: "0123456789", N: 10, Step: 7, Lose: true, Whole: true}
				_, got, _, fault := h.read(t, "worker", whole, nil)
				require.Nil(t, fault, "the answer has all of it")
				require.Equal(t, whole.all(), got)
			})
			t.Run("over NATS", func(t *testing.T) {
				f := feed{Gate: "2", Text: "一二", N: 50, Step: 7}
				data, last := natsStream(t, h.Conn, "shallot.v1.tool.request.worker", f.args(), func() { close(h.gates["2"]) })
				require.Equal(t, f.all(), data)
				require.NotEmpty(t, last.Header.Get("Shallot-Call"))
				data, last = natsStream(t, h.Conn, "shallot.v1.tool.request.worker",
					feed{Text: "x", N: 50, Step: 7, Fail: "the disk is gone"}.args())
				require.True(t, strings.HasPrefix(data, strings.Repeat("x", 50)), "chunks, then the fault")
				require.Contains(t, data, `"code":"stream_cut"`)
				require.Contains(t, data, "the disk is gone")
				require.Empty(t, last.Data)
				data, _ = natsStream(t, h.Conn, "shallot.v1.tool.request.getCurrentTime", `{}`)
				require.True(t, json.Valid([]byte(data)) || data != "", "a tool that does not stream has one message: %s", data)
				bad := ask(t, h.Conn, "shallot.v1.tool.request.feed", `{}`, "Shallot-Stream", "yes")
				require.Equal(t, "400", bad.Header.Get("Nats-Service-Error-Code"))
				require.Contains(t, string(bad.Data), "Shallot-Stream")
				_, last = natsStream(t, h.Conn, "shallot.v1.tool.request.nowhere", `{}`)
				require.NotNil(t, last, "a call that is refused ends its stream too")
			})
			t.Run("the caller leaves", func(t *testing.T) {
				p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "feed",
					Body: []byte(feed{Gate: "3", Text: "f", N: 100, Step: 10}.args()), Stream: true})
				require.NoError(t, err)
				_, _, _, fault := follow(t, p, p.Leave)
				require.NotNil(t, fault)
				require.ErrorIs(t, <-h.left, pipeline.ErrCancelled)
			})
		})
	}
}

// natsStream asks for a stream and returns the data of all messages up to the empty one, and that.
func natsStream(t *testing.T, nc *nats.Conn, subject, body string, first ...func()) (data string, last *nats.Msg) {
	t.Helper()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Data: []byte(body),
		Header: nats.Header{"Shallot-Stream": {"on"}}}))
	var all bytes.Buffer
	for {
		m, err := sub.NextMsg(30 * time.Second)
		require.NoError(t, err)
		if len(m.Data) == 0 {
			return all.String(), m
		}
		all.Write(m.Data)
		for _, f := range first {
			f()
		}
		first = nil
	}
}

// The process that runs a streaming tool dies in mid-stream: an idempotent tool runs again elsewhere and its caller
// sees no text twice; whatever does not go on as it began, and a tool that may not run twice, ends in an error.
func TestStreamedToolUnderKills(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	file := filepath.Join(t.TempDir(), "worker.yaml")
	yaml := `
nats: {url: "` + srv.ClientURL() + `"}
bus: {ack-wait: 1s}
tool:
  tools:
    - {name: many, executor: "nats:kill.many", effect: write, idempotent: true, timeout: 20s, cache: "off"}
    - {name: other, executor: "nats:kill.other", effect: write, idempotent: true, timeout: 20s, cache: "off"}
    - {name: once, executor: "nats:kill.once", effect: write, timeout: 20s}
`
	require.NoError(t, os.WriteFile(file, []byte("version: 1\ntexts: zh\n"+yaml), 0o600))
	h := startRoles(t, yaml, host.Roles{All: true, Entry: true})
	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	var runs sync.Map
	_, err = nc.Subscribe("kill.*", func(m *nats.Msg) {
		name := strings.TrimPrefix(m.Subject, "kill.")
		n := 1
		if v, ok := runs.Load(name); ok {
			n = v.(int) + 1
		}
		runs.Store(name, n) // one worker, which handles one request after another
		say := []string{"one ", "two ", "three"}
		if name == "other" && n > 1 {
			say[0] = "uno "
		}
		for i, text := range say {
			_ = m.RespondMsg(&nats.Msg{Data: []byte(text), Header: nats.Header{"Shallot-Chunk": {strconv.Itoa(i + 1)}}})
			if i == 1 && n == 1 {
				return // the process that asked is killed now
			}
		}
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Shallot-Chunks": {"3"}}})
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	for _, row := range []struct {
		tool, whole string
		code        messages.Code
	}{
		{tool: "many", whole: "one two three"},
		{tool: "other", whole: "one two ", code: messages.StreamCut},
		{tool: "once", whole: "one two ", code: messages.OutcomeUnknown},
	} {
		p := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=host", "SHALLOT_TEST_FILE=" + file,
			"SHALLOT_TEST_NATS=" + srv.ClientURL()}}
		p.start()
		call, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: row.tool, Body: []byte(`{}`),
			Stream: true})
		require.NoError(t, err)
		seen := ""
		var f stream.ToolFollower
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		read := func(chunks [][]byte) {
			for _, chunk := range chunks {
				text, _ := chat.ToolChunkText(chunk)
				seen += text
			}
		}
		next := &process{t: t, env: p.env}
		c, err := call.Wait(ctx, func(d pipeline.Delta) {
			before := seen
			read(f.Delta(d))
			if seen == "one two " && before != seen {
				p.kill()
				next.start()
			}
		})
		cancel()
		require.NoError(t, err, row.tool)
		chunks, fault := f.End(c)
		read(chunks)
		next.kill()
		require.Equal(t, row.whole, seen, row.tool)
		if row.code == "" {
			require.Nil(t, fault, row.tool)
			n, _ := runs.Load("many")
			require.Equal(t, 2, n)
			continue
		}
		require.NotNil(t, fault, row.tool)
		require.Equal(t, row.code, fault.Code, fmt.Sprint(row.tool, fault.Message))
	}
}
