package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// system is an installation on an embedded server, with an upstream that counts.
type system struct {
	t     *testing.T
	url   string
	up    *httptest.Server
	model func(turn int, request []byte) (tools []map[string]any, text string)
	// gate, if not nil, is passed by each request before it is counted; the name of the tool is empty for a model.
	gate func(turn int, tool string)

	mu    sync.Mutex
	turns map[int][]string // nonces of the answers to each turn
	tools map[string]int   // by arguments: how often a tool ran
	// stopped are the nodes that the test itself has stopped.
	stopped map[*bus.Node]bool
}

func newSystem(t *testing.T) *system {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	s := &system{t: t, url: srv.ClientURL(), turns: map[int][]string{}, tools: map[string]int{}, stopped: map[*bus.Node]bool{}}
	js, err := jetstream.New(s.conn())
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, config()))
	s.up = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.up.Close)
	return s
}

func (s *system) conn() *nats.Conn {
	s.t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: s.t.Name(), URL: s.url, Log: testLog(), Direct: true})
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	return nc
}

func (s *system) part(name string, entry, target bool) partSpec {
	return partSpec{Name: name, NATS: s.url, Upstream: s.up.URL, Entry: entry, Target: target}
}

// node starts a node in this process, which the test stops.
func (s *system) node(entry, target bool) *bus.Node {
	s.t.Helper()
	n, err := startNode(s.t.Context(), s.conn(), s.part("node", entry, target))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { s.stop(n) })
	return n
}

func (s *system) stop(n *bus.Node) {
	s.mu.Lock()
	was := s.stopped[n]
	s.stopped[n] = true
	s.mu.Unlock()
	if was {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = n.Stop(ctx)
}

var nonce atomic.Int64

func (s *system) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	tool, isTool := strings.CutPrefix(r.URL.Path, "/tool/")
	turn := int(gjson.GetBytes(body, "turn").Int()) // of a tool
	if !isTool {
		tool = ""
	}
	for _, m := range chat.Messages(body) {
		if m.Role() == "assistant" {
			turn++
		}
	}
	if s.gate != nil {
		s.gate(turn, tool)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := fmt.Sprintf("n%d", nonce.Add(1))
	if isTool {
		s.tools[string(body)]++
		_, _ = fmt.Fprintf(w, `{"nonce":"%s"}`, n)
		return
	}
	s.turns[turn] = append(s.turns[turn], n)
	tools, text := s.model(turn, body)
	message := map[string]any{"role": "assistant", "content": n + " " + text}
	if len(tools) > 0 {
		message["tool_calls"] = tools
	}
	_, _ = w.Write(rawjson.Encode(map[string]any{"id": n, "object": "chat.completion", "choices": []any{map[string]any{
		"index": 0, "message": message, "finish_reason": "stop"}}}))
}

func call(id, name, args string) map[string]any {
	return map[string]any{"id": id, "type": "function", "function": map[string]any{"name": name, "arguments": args}}
}

func request() pipeline.Request {
	return pipeline.Request{Kind: messages.Agent, Agent: "helper", Tenant: "acme", Deadline: time.Now().Add(2 * time.Minute),
		Body: []byte(`{"model":"agent/helper","messages":[{"role":"user","content":"go"}]}`)}
}

func (s *system) end(p pipeline.Pending) *messages.Call {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 90*time.Second)
	defer cancel()
	c, err := p.Wait(ctx, nil)
	require.NoError(s.t, err)
	return c
}

func text(t *testing.T, c *messages.Call) string {
	t.Helper()
	require.Nil(t, c.Fault)
	return chat.Choices(c.Reply())[0].Message().Text()
}

func TestARunOnTheBus(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`)}, ""
		}
		return nil, "done"
	}
	door, _ := s.node(true, false), s.node(false, true)
	p, err := door.Accept(t.Context(), request())
	require.NoError(t, err)
	require.Contains(t, text(t, s.end(p)), "done")
	require.Equal(t, map[string]int{`{"at":1}`: 1, `{"at":2}`: 1}, s.tools)
	again, err := door.Result(t.Context(), "acme", p.ID())
	require.NoError(t, err)
	require.Contains(t, text(t, again), "done", "a run's end is kept")
}

// held waits until the run waits for a person.
func (s *system) held(n *bus.Node, id string) bus.Parked {
	s.t.Helper()
	var p bus.Parked
	require.Eventually(s.t, func() (ok bool) {
		var err error
		p, err = n.HeldCall(s.t.Context(), "acme", id)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	return p
}

func TestARunThatWaitsForAPersonSurvivesEverythingAndIsDecidedOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "pay", `{"amount":50}`), call("b", "look", `{}`), call("c", "pay", `{"amount":60}`)}, ""
		}
		return nil, "done"
	}
	first := s.node(true, true)
	p, err := first.Accept(t.Context(), request())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = p.Wait(ctx, nil)
	require.ErrorIs(t, err, pipeline.ErrHeld, "nobody waits in a process")
	held := s.held(first, p.ID())
	require.Equal(t, "agent", held.Stage)
	require.Contains(t, string(held.Question), `"auto_approved":true`)
	require.Empty(t, s.tools)
	_, err = first.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"id":"a","decision":"approve"}`), "ann")
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.ErrorContains(t, err, "no decision yet about c")
	s.stop(first)

	second := s.node(true, true)
	held = s.held(second, p.ID())
	require.Contains(t, string(held.Question), `"by":"ann"`, "a part of the decisions is kept")
	var all sync.WaitGroup
	var won, lost atomic.Int32
	for i := range 100 {
		all.Go(func() {
			_, err := second.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"decision":"approve"}`), fmt.Sprint("p", i))
			if err == nil {
				won.Add(1)
				return
			}
			if f := messages.AsFault(err, ""); f.Code == messages.Conflict && strings.Contains(f.Message, "decided already, by p") {
				lost.Add(1)
				return
			}
			t.Error(err)
		})
	}
	all.Wait()
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 99, lost.Load())
	require.Eventually(t, func() bool {
		c, _, err := second.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "done")
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, map[string]int{`{"amount":50}`: 1, `{}`: 1, `{"amount":60}`: 1}, s.tools)
	require.Len(t, s.turns[0], 1, "the model was not asked again")
}

func TestARunIsStreamedAsOneReply(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "look", `{}`)}, "let me look"
		}
		return nil, "done"
	}
	door, _ := s.node(true, false), s.node(true, true)
	r := request()
	r.Stream = true
	p, err := door.Accept(t.Context(), r)
	require.NoError(t, err)
	f := stream.NewFollower(r.Body)
	var chunks [][]byte
	c, err := p.Wait(t.Context(), func(d pipeline.Delta) { chunks = append(chunks, f.Delta(d)...) })
	require.NoError(t, err)
	rest, fault := f.End(c)
	require.Nil(t, fault)
	whole, err := chat.Assemble(append(chunks, rest...))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.turns[0][0] + " let me look\n\n" + s.turns[1][0] + " done"
	require.Equal(t, want, chat.Choices(whole)[0].Message().Text())
	require.Equal(t, want, text(t, c))
}

func TestWhatNobodyDecidesInTimeIsReadAsARejection(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, request []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "brief", `{}`)}, ""
		}
		msgs := chat.Messages(request)
		return nil, msgs[len(msgs)-1].Text()
	}
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, _, err := n.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "nobody decided in time")
	}, 20*time.Second, 50*time.Millisecond)
	require.Empty(t, s.tools)
}

// A stage of the tool chain holds a call of a run by itself: the run waits for it without a process.
func TestARunWaitsForACallThatAStageHolds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "guarded", `{}`), call("b", "look", `{"b":1}`)}, ""
		}
		return nil, "done"
	}
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	held := s.held(n, p.ID())
	require.Contains(t, string(held.Question), "waits")
	_, err = n.Decide(t.Context(), "acme", p.ID(), json.RawMessage(`{"decision":"approve"}`), "ann")
	require.ErrorContains(t, err, "decide about that call")
	var child string
	require.Eventually(t, func() bool {
		list, err := n.HeldCalls(t.Context(), "acme")
		for _, h := range list {
			if h.Kind == messages.Tool {
				child = h.Call
			}
		}
		return err == nil && child != ""
	}, 10*time.Second, 20*time.Millisecond)
	_, err = n.Decide(t.Context(), "acme", child, json.RawMessage(`"yes"`), "ann")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, _, err := n.Peek(t.Context(), "acme", p.ID())
		return err == nil && c != nil && strings.Contains(text(t, c), "done")
	}, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, map[string]int{`{}`: 1, `{"b":1}`: 1}, s.tools)
}

func TestACancelledRunTakesItsCallsAlong(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.model = func(int, []byte) ([]map[string]any, string) { return nil, "never" }
	asked, gone := make(chan struct{}), make(chan struct{})
	s.up.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that its client is gone
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	n := s.node(true, true)
	p, err := n.Accept(t.Context(), request())
	require.NoError(t, err)
	<-asked
	n.Cancel(p.ID())
	select {
	case <-gone:
	case <-t.Context().Done():
	}
	require.Equal(t, messages.Cancelled, s.end(p).Fault.Code)
}
