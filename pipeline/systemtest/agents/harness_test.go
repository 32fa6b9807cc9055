package agents

import (
	"context"
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
)

// system is an installation on an embedded server, with an upstream that counts.
type system struct {
	t     *testing.T
	url   string
	up    *httptest.Server
	model func(turn int, request []byte) (tools []map[string]any, text string)
	// gate, if not nil, is passed by each request before it is counted; the name of the tool is empty for a model.
	gate func(turn int, tool string)
	// stages and hosts are those of its parts.
	stages, hosts string

	mu    sync.Mutex
	turns map[int][]string // nonces of the answers to each turn
	tools map[string]int   // by arguments: how often a tool ran
	trace []string         // hooks and tools, as they came
	gave  map[string]bool  // the nonces of tools
	again []int            // turns that a model was asked for when a later one was known
	// stopped are the nodes that the test itself has stopped.
	stopped map[*bus.Node]bool
}

func newSystem(t *testing.T) *system {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	return newSystemOn(t, srv.ClientURL())
}

// newSystemOn is an installation on the server at url.
func newSystemOn(t *testing.T, url string) *system {
	t.Helper()
	s := &system{t: t, url: url, turns: map[int][]string{}, tools: map[string]int{},
		gave: map[string]bool{}, stopped: map[*bus.Node]bool{}}
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
	return partSpec{Name: name, NATS: s.url, Upstream: s.up.URL, Entry: entry, Target: target,
		Stages: s.stages, Hosts: s.hosts}
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
	if hook, ok := strings.CutPrefix(r.URL.Path, "/hook/"); ok {
		s.traced(hook + string(body))
		return
	}
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
		s.trace = append(s.trace, "tool")
		s.gave[n] = true
		_, _ = fmt.Fprintf(w, `{"nonce":"%s"}`, n)
		return
	}
	s.turns[turn] = append(s.turns[turn], n)
	if len(s.turns[turn+1]) > 0 {
		s.again = append(s.again, turn)
	}
	tools, text := s.model(turn, body)
	message := map[string]any{"role": "assistant", "content": n + " " + text}
	if len(tools) > 0 {
		message["tool_calls"] = tools
	}
	_, _ = w.Write(rawjson.Encode(map[string]any{"id": n, "object": "chat.completion", "choices": []any{map[string]any{
		"index": 0, "message": message, "finish_reason": "stop"}}}))
}

func (s *system) traced(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, what)
}

func call(id, name, args string) map[string]any {
	return map[string]any{"id": id, "type": "function", "function": map[string]any{"name": name, "arguments": args}}
}

func request() pipeline.Request {
	return pipeline.Request{Kind: messages.Agent, Agent: "helper", Tenant: "acme",
		Deadline: time.Now().Add(2 * time.Minute),
		Body:     []byte(`{"model":"agent/helper","messages":[{"role":"user","content":"go"}]}`)}
}

func (s *system) end(p pipeline.Pending) *messages.Call {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
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

// held waits until the run waits for a person.
func (s *system) held(n *bus.Node, id string) bus.Parked {
	s.t.Helper()
	var p bus.Parked
	require.Eventually(s.t, func() (ok bool) {
		var err error
		p, err = n.HeldCall(s.t.Context(), "acme", id)
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	return p
}
