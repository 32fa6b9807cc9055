//go:build unix

package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

var binDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "shallot-systemtest-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binDir = dir
		pace.Parallel(6)
		return m.Run()
	}())
}

// build builds the commands and the server once, into a directory that goes when the tests end.
var build = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-o", binDir, "github.com/shallot-nats/shallot/cmd/gateway",
		"github.com/shallot-nats/shallot/cmd/worker", "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
})

// cluster is one installation under test.
type cluster struct {
	t   *testing.T
	url string // of the NATS server
	env []string
	nc  *nats.Conn
	all []*process // in the order of their starts: the server first
}

// stop ends all processes at once, and the server after them.
func (c *cluster) stop() {
	for i := len(c.all) - 1; i >= 0; i-- {
		if i == 0 {
			for _, p := range c.all[1:] {
				p.wait()
			}
		}
		c.all[i].signal(syscall.SIGCONT)
		c.all[i].signal(syscall.SIGTERM)
	}
	for _, p := range c.all {
		p.wait()
		if c.t.Failed() && os.Getenv("SHALLOT_TEST_LOG") != "" {
			c.t.Logf("%s:\n%s", p.cmd, p.String())
		}
	}
}

// newCluster starts a server of its own for the test. env are further variables of every process.
func newCluster(t *testing.T, env ...string) *cluster {
	t.Helper()
	return newClusterOf(t, []string{"-js", "-sd", filepath.Join(t.TempDir(), "js")}, env...)
}

// newClusterOf gives the server the arguments.
func newClusterOf(t *testing.T, server []string, env ...string) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("process test")
	}
	require.NoError(t, build())
	c := &cluster{t: t, env: env}
	t.Cleanup(c.stop)
	dir := t.TempDir()
	c.process("nats-server", append([]string{"-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", dir}, server...)...)
	require.Eventually(t, func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*.ports"))
		if len(files) == 0 {
			return false
		}
		raw, err := os.ReadFile(files[0])
		var ports struct {
			NATS []string `json:"nats"`
		}
		if err != nil || json.Unmarshal(raw, &ports) != nil || len(ports.NATS) == 0 {
			return false
		}
		c.url = ports.NATS[0]
		return true
	}, 30*time.Second, 10*time.Millisecond)
	nc, err := nats.Connect(c.url, nats.UserInfo("admin", "secret"), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	c.nc = nc
	return c
}

// process is one process of the installation, with what it said.
type process struct {
	apitest.Output
	cmd  *exec.Cmd
	done chan struct{}
}

// await waits until the process has said what the expression finds, and returns its groups.
func (p *process) await(t *testing.T, expr string) []string {
	t.Helper()
	return p.Await(t, p.done, expr)
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// wait waits for the end of a process that was told to stop, and ends one that does not.
func (p *process) wait() {
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.kill()
	}
}

func (c *cluster) process(name string, args ...string) *process {
	c.t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(binDir, name), args...), done: make(chan struct{})}
	p.cmd.Dir = c.t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Env = []string{"HOME=" + p.cmd.Dir, "PATH=" + os.Getenv("PATH"), "NO_PROXY=127.0.0.1",
		"SHALLOT_BUS__LAME_DUCK=0s"}
	p.cmd.Env = append(p.cmd.Env, c.env...)
	bind(p.cmd)
	require.NoError(c.t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	c.all = append(c.all, p)
	return p
}

// worker starts a worker; ready waits for it.
func (c *cluster) worker(args ...string) *process {
	c.t.Helper()
	return c.process("worker", append([]string{"--nats", c.url}, args...)...)
}

func (p *process) ready(t *testing.T) *process {
	t.Helper()
	p.await(t, `(?m)^shallot worker .*$`)
	return p
}

// gateway starts a gateway and returns it and its base URL.
func (c *cluster) gateway(args ...string) (*process, string) {
	c.t.Helper()
	p := c.process("gateway", append([]string{"--nats", c.url, "--http", "127.0.0.1:0", "--admin", "none"}, args...)...)
	base := p.await(c.t, `HTTP +(http://\S+)/v1`)[1]
	p.await(c.t, `ready in`)
	return p, base
}

// answer is what came back, by whichever way.
type answer struct {
	status int
	header func(string) string
	body   []byte
}

func (a answer) path() []string { return strings.Split(a.header("Shallot-Path"), ",") }

func httpDo(ctx context.Context, method, url, body string, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header.Get, body: raw}, err
}

func (c *cluster) http(method, url, body string, header ...string) answer {
	c.t.Helper()
	a, err := httpDo(c.t.Context(), method, url, body, header...)
	require.NoError(c.t, err)
	return a
}

// ask is a plain NATS request, status 200 unless the service protocol says otherwise.
func (c *cluster) ask(ctx context.Context, subject, body string) (answer, error) {
	r, err := c.nc.RequestWithContext(ctx, subject, []byte(body))
	if err != nil {
		return answer{}, err
	}
	a := answer{status: 200, header: r.Header.Get, body: r.Data}
	if code := r.Header.Get("Nats-Service-Error-Code"); code != "" {
		_, err = fmt.Sscan(code, &a.status)
	}
	return a, err
}

func (c *cluster) req(subject, body string) answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	a, err := c.ask(ctx, subject, body)
	require.NoError(c.t, err, subject)
	return a
}

// events are the data lines of a stream of events.
func events(raw []byte) []string {
	var out []string
	s := bufio.NewScanner(bytes.NewReader(raw))
	s.Buffer(nil, 8<<20)
	for s.Scan() {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}

const echo = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
