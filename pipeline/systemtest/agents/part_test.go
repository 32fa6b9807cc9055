package agents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// partSpec says what a process of an installation does.
type partSpec struct {
	Name     string
	NATS     string
	Upstream string // where models and tools are, in the process of the test
	Entry    bool
	Target   bool
	// Stages names the stages of its own that the installation has, "wrap" or "hooks"; Hosts is "only" where this process
	// has nothing else, and "none" where it does not have them.
	Stages, Hosts string
}

func config() bus.Config {
	return bus.Config{ModelClasses: []string{"default"}, ToolClasses: []string{"default"}, AckWait: 3 * time.Second,
		MemberTimeout: 3 * time.Second, Drain: time.Second}
}

func TestMain(m *testing.M) {
	if raw := os.Getenv("SHALLOT_AGENTS_PART"); raw != "" {
		if err := runPart(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pace.Parallel(8)
	os.Exit(m.Run())
}

func testLog() *slog.Logger {
	if os.Getenv("SHALLOT_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// runPart is a process: it ends when the test's process does, or is killed.
func runPart(raw string) error {
	var p partSpec
	if err := json.Unmarshal([]byte(raw), &p); err != nil {
		return err
	}
	nc, err := jet.Connect(jet.ConnOptions{Name: p.Name, URL: p.NATS, Log: testLog(), Direct: true})
	if err != nil {
		return err
	}
	n, err := startNode(context.Background(), nc, p)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.Stop(ctx)
}

// tools of the installation: pay needs a person's yes above 10.
type registry struct{}

func (registry) Get(_ context.Context, name string) (*tool.Definition, error) {
	name, _, _ = strings.Cut(name, "@")
	return &tool.Definition{Name: name, Version: "1", Source: tool.Operator,
		Executor:    tool.Executor{Kind: tool.ExecGo, Name: name},
		InputSchema: tool.JSON(`{"type":"object"}`)}, nil
}

// startNode starts a node whose models and tools ask the upstream.
func startNode(ctx context.Context, nc *nats.Conn, p partSpec) (*bus.Node, error) {
	desk, err := stages.NewApprovalDesk(&stages.ApprovalConfig{Policies: []approval.Policy{
		{Name: "big", Tool: "pay", When: "(args.amount ?? 0) > 10"}, {Name: "soon", Tool: "brief", Expires: time.Second},
		{Name: "sure", Tool: "sign", Decisions: []string{approval.Approve}}}},
		stages.Deps{Tools: registry{}, Parser: &args.Parser{}})
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	runs, err := jet.OpenBucket(ctx, js, jet.RunsBucket)
	if err != nil {
		return nil, err
	}
	o := bus.Options{Config: config(), Conn: nc, Log: testLog(), Entry: p.Entry, Manager: &pipeline.Manager{},
		Classify: func(*messages.Call) (string, error) { return "default", nil }}
	if p.Target {
		target := upstream(p.Upstream)
		o.Targets = []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: target},
			{Kind: messages.Tool, Class: "default", Target: target}}
	}
	if err := o.Manager.Register(gate, true); err != nil {
		return nil, err
	}
	for _, own := range ownStages(p) {
		if err := o.Manager.Register(own, true); err != nil {
			return nil, err
		}
	}
	if p.Hosts != "" {
		o.Hosts = func(s pipeline.Stage) bool { return (s.Name == gate.Name) == (p.Hosts == "none") }
	}
	entry := &late{}
	o.Agents = agent.New(agent.Options{
		Entry: entry, Log: agent.Log{Store: runs}, Judge: desk, Out: testLog(),
		Agent: func(_ context.Context, name string) (*agent.Spec, error) {
			return &agent.Spec{Name: name, Model: "m", Tools: []string{"pay", "look", "brief", "guarded", "sign"},
				Limits: limitsOf(name), Rules: map[string]agent.Rule{"log": agent.Append}}, nil
		},
		Tools: func(_ context.Context, _ string, s *agent.Spec) (out []agent.Tool, err error) {
			for _, name := range s.Tools {
				out = append(out, agent.NewTool(name, "", nil))
			}
			return out, nil
		},
	})
	o.Decide = func(ctx context.Context, p bus.Parked, answer json.RawMessage, by string) (json.RawMessage, error) {
		if p.Kind != messages.Agent {
			return answer, nil
		}
		ruling, partly, open, _, err := agent.TakeAnswer(ctx, p.Question, answer, by, desk.Decide)
		if err == nil && ruling == nil {
			err = &bus.Partly{Question: partly, Open: agent.StillOpen(open)}
		}
		return ruling, err
	}
	n, err := bus.New(ctx, o)
	if err != nil {
		return nil, err
	}
	entry.Node = n
	return n, n.Start(context.WithoutCancel(ctx))
}

// gate is a stage of its own that holds the calls of one tool.
var gate = pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 30,
	Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Tool == "guarded" && c.Notes[messages.NoteAnswer] == nil {
			return pipeline.Hold([]byte(`"may it?"`)), nil
		}
		return pipeline.Continue(), nil
	}}

// late is the node for the loop, which is made before it.
type late struct{ *bus.Node }

// upstream asks a server for what a model or a tool answers.
func upstream(url string) pipeline.Target {
	return pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
		path := "/model"
		if c.Kind == messages.Tool {
			path = "/tool/" + c.Tool
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(c.Request()))
		if err != nil {
			return err
		}
		req.Header.Set("Call", c.ID)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			return errors.Join(err, fmt.Errorf("%s: %s", res.Status, body))
		}
		c.SetReply(body)
		return nil
	})
}

// proc is a child process.
type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func launch(t *testing.T, p partSpec) *proc {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHALLOT_AGENTS_PART="+string(rawjson.Encode(p)))
	_, err := cmd.StdinPipe() // its end tells the child that we are gone
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	c := &proc{cmd: cmd, done: make(chan struct{})}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		close(c.done)
	}()
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return c
}

// kill ends the process at once, and waits until it is gone.
func (p *proc) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}
