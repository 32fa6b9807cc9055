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
	return newSystemOn(t, srv.ClientURL())
}

// newSystemOn is an installation on the server at url.
func newSystemOn(t *testing.T, url string) *system {
	t.Helper()
	s := &system{t: t, url: url, turns: map[int][]string{}, tools: map[string]int{}, stopped: map[*bus.Node]bool{}}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	n := fmt.Sprintf("n%d", nonce.Add(1))
	if strings.HasPrefix(r.URL.Path, "/tool/") {
		s.tools[string(body)]++
		_, _ = fmt.Fprintf(w, `{"nonce":"%s"}`, n)
		return
	}
	turn := 0
	for _, m := range chat.Messages(body) {
		if m.Role() == "assistant" {
			turn++
		}
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
	return pipeline.Request{Kind: messages.Agent, Agent: "helper", Tenant: "acme",
		Deadline: time.Now().Add(2 * time.Minute),
		Body:     []byte(`{"model":"agent/helper","messages":[{"role":"user","content":"go"}]}`)}
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

// survive carries out a run that ends after so many turns. Every few turns the next of four processes dies and is
// started again, each in its turn with what die kills and starts. In the end the run is judged.
func (s *system) survive(turns, every int, deadline time.Time, die ...func()) {
	s.t.Helper()
	specs := []partSpec{s.part("door", true, false), s.part("owner", true, false), s.part("worker1", false, true),
		s.part("worker2", false, true)}
	for _, spec := range specs {
		p := launch(s.t, spec)
		die = append(die, func() {
			p.kill()
			p = launch(s.t, spec)
		})
	}
	door := s.node(false, false) // it only accepts
	r := request()
	r.Submit, r.Deadline = true, deadline
	p, err := door.Accept(s.t.Context(), r)
	require.NoError(s.t, err)
	killed := 0
	for last := -1; ; {
		s.mu.Lock()
		turn := len(s.turns)
		s.mu.Unlock()
		c, _, err := door.Peek(s.t.Context(), "acme", p.ID())
		if err == nil && c != nil {
			s.judge(c, turns, killed)
			return
		}
		if turn != last && turn < turns && turn%every == 0 { // one more turn was reached: somebody dies
			last = turn
			die[killed%len(die)]()
			killed++
		}
		select {
		case <-time.After(10 * time.Millisecond): // simulated: the kills come at any time, not at an event
		case <-s.t.Context().Done():
			s.t.Fatal("the test's time is over")
		}
	}
}

// judge holds the end of a run to what upstream has logged: it says what the final model call was told, no finished
// step was made twice, and no tool ran twice.
func (s *system) judge(c *messages.Call, turns, killed int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Greater(s.t, killed, 3)
	require.Contains(s.t, text(s.t, c), "done")
	for args, n := range s.tools {
		require.Equal(s.t, 1, n, "tool %s", args)
	}
	bought := 0
	for turn := range turns + 1 {
		require.NotEmpty(s.t, s.turns[turn])
		bought += len(s.turns[turn])
	}
	require.LessOrEqual(s.t, bought, turns+1+killed, "only what was under way with a process that died was bought again")
	s.t.Logf("%d processes killed, %d model calls for %d turns, %d tool calls", killed, bought, turns+1, len(s.tools))
}
