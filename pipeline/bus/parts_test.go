package bus_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// partSpec says what one process of an installation is: it is handed to this test binary, run again, in SHALLOT_PART.
type partSpec struct {
	URL     string
	Name    string
	Fixture string        // of the suite, or "load" for the kill tests
	Stage   string        // the stage that it hosts
	Target  bool          // it serves the targets
	Entry   bool          // it has the entry role
	Ledger  string        // where the target of the kill tests writes what was bought
	AckWait time.Duration // of stored calls
	// MemberTimeout is how long work that is shown no more is waited for; 0: 3 s.
	MemberTimeout time.Duration
}

func (p partSpec) config() bus.Config {
	return classes(bus.Config{Drain: 5 * time.Second, MemberTimeout: cmp.Or(p.MemberTimeout, 3*time.Second),
		AckWait: p.AckWait})
}

func (p partSpec) fixture() pipelinetest.Fixture {
	if p.Fixture == "load" {
		return loadFixture(p.Ledger, p.Name)
	}
	return pipelinetest.Fixtures()[p.Fixture]
}

// runPart is the main of one process. It ends gracefully on SIGTERM, and at once when its parent is gone.
func runPart(spec string) int {
	var p partSpec
	if err := json.Unmarshal([]byte(spec), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := p.run(log); err != nil {
		log.Error("part failed", "part", spec, "err", err)
		return 1
	}
	return 0
}

func (p partSpec) run(log *slog.Logger) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	nc, err := jet.Connect(jet.ConnOptions{Name: "part " + p.Name, URL: p.URL, Log: log, Direct: true})
	if err != nil {
		return err
	}
	defer nc.Close()
	f := p.fixture()
	m := &pipeline.Manager{}
	for _, s := range f.Stages {
		if err := m.Register(s, true); err != nil {
			return err
		}
	}
	o := bus.Options{Config: p.config(), Conn: nc, Log: log, Manager: m, Entry: p.Entry, Hosts: nobody}
	if p.Stage != "" {
		o.Hosts = only(p.Stage)
	}
	if p.Target {
		o.Targets = roles(f.Target)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n, err := bus.New(ctx, o)
	if err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	if p.Entry {
		if err := serveSuite(nc, caller{n}); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	<-term
	return stop(n)
}

const suiteSubject = "test.call"

// serveSuite lets the suite, in another process, make calls through this one: whole calls in and out, because the
// suite looks at slips and notes.
func serveSuite(nc *nats.Conn, c caller) error {
	_, err := nc.Subscribe(suiteSubject, func(m *nats.Msg) {
		go func() {
			call, err := messages.Unmarshal(m.Data)
			if err != nil {
				_ = m.Respond([]byte(err.Error()))
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if call.Stream {
				call, err = c.CallStream(ctx, call, func(chunk []byte) {
					_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Data: chunk, Header: nats.Header{"Chunk": {"1"}}})
				})
			} else {
				call, err = c.Call(ctx, call)
			}
			var out []byte
			if err == nil {
				whole(call)
				out, err = call.Marshal()
			}
			if err != nil {
				out = []byte(err.Error())
			}
			_ = m.Respond(out)
		}()
	})
	return errors.Join(err, nc.Flush())
}

// whole replaces claim checks by their bodies: the other side of the suite has no object store.
func whole(c *messages.Call) {
	_, requestIsText := c.RequestText()
	_, replyIsText := c.ReplyText()
	request, reply := c.Request(), c.Reply()
	if !requestIsText {
		c.SetRequest([]byte(`0`)) // the same bytes again would keep their claim check
		c.SetRequest(request)
	}
	if reply != nil && !replyIsText {
		c.SetReply([]byte(`0`))
		c.SetReply(reply)
	}
}

// remote makes the suite's calls through a process with the entry role.
type remote struct{ nc *nats.Conn }

func (r remote) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	return r.CallStream(ctx, c, func([]byte) {})
}

func (r remote) CallStream(ctx context.Context, c *messages.Call, onChunk func([]byte)) (*messages.Call, error) {
	wire, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	sub, err := r.nc.SubscribeSync(r.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := r.nc.PublishRequest(suiteSubject, sub.Subject, wire); err != nil {
		return nil, err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		if m.Header.Get("Chunk") == "" {
			return messages.Unmarshal(m.Data)
		}
		onChunk(m.Data)
	}
}

// proc is a child process.
type proc struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error
}

func launch(t testing.TB, cmd *exec.Cmd, ready func(out io.Reader) error) *proc {
	t.Helper()
	_, err := cmd.StdinPipe() // held open: its end tells the child that we are gone
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if os.Getenv("SHALLOT_TEST_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	require.NoError(t, cmd.Start())
	p := &proc{t: t, cmd: cmd, done: make(chan struct{})}
	err = ready(out)
	go func() {
		_, _ = io.Copy(io.Discard, out)
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.signal(syscall.SIGKILL); <-p.done })
	require.NoError(t, err, "%s %s", cmd.Path, cmd.Args)
	return p
}

func (p *proc) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// end sends the signal and waits for the end of the process.
func (p *proc) end(s os.Signal, limit time.Duration) {
	p.t.Helper()
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("%v has not ended %s after %v", p.cmd.Args, limit, s)
	}
}

func launchPart(t testing.TB, spec partSpec) *proc {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHALLOT_PART="+string(rawjson.Encode(spec)))
	return launch(t, cmd, func(out io.Reader) error {
		line, err := bufio.NewReader(out).ReadString('\n')
		if strings.TrimSpace(line) != "ready" {
			return fmt.Errorf("not ready: %q %w", line, err)
		}
		return nil
	})
}

// natsServer builds the real nats-server once a run.
var natsServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "nats-server")
	out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build nats-server: %w: %s", err, out)
	}
	return path, nil
})

// serverProc is a nats-server process that can be killed and started again on its port and directory.
type serverProc struct {
	t    testing.TB
	url  string
	port string
	dir  string
	proc *proc
}

func launchServer(t testing.TB) *serverProc {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "server-")
	require.NoError(t, err)
	port := pace.Port(t)
	conf := "max_payload: 8MB\njetstream { store_dir: \"" + dir + "\" }\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600))
	s := &serverProc{t: t, url: "nats://127.0.0.1:" + port, port: port, dir: dir}
	s.start()
	return s
}

func (s *serverProc) start() {
	s.t.Helper()
	path, err := natsServer()
	require.NoError(s.t, err)
	s.proc = launch(s.t, exec.Command(path, "-c", filepath.Join(s.dir, "conf"), "-a", "127.0.0.1", "-p",
		s.port), func(io.Reader) error {
		for begin := time.Now(); ; {
			nc, err := nats.Connect(s.url)
			if err == nil {
				js, err := jetstream.New(nc)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				if err == nil {
					_, err = js.AccountInfo(ctx)
				}
				cancel()
				nc.Close()
				if err == nil {
					return nil
				}
			}
			if time.Since(begin) > time.Minute {
				return fmt.Errorf("nats-server is not there: %w", err)
			}
			<-time.After(10 * time.Millisecond) // simulated: a client's back-off while another process's port is not there
		}
	})
}

func dial(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), URL: url, Log: testLog(), Direct: true})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
