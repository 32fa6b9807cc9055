//go:build long

package agents

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// server is a nats-server process that can be killed and started again on its port and directory.
type server struct {
	t    *testing.T
	path string
	dir  string
	port int
	cmd  *exec.Cmd
}

func launchServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "nats-server")
	out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput()
	require.NoError(t, err, string(out))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{t: t, path: path, dir: dir, port: l.Addr().(*net.TCPAddr).Port}
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "conf"),
		[]byte("jetstream { store_dir: \""+dir+"\", sync_interval: always }\n"), 0o600))
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) url() string { return "nats://127.0.0.1:" + strconv.Itoa(s.port) }

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.path, "-c", filepath.Join(s.dir, "conf"), "-a", "127.0.0.1", "-p", strconv.Itoa(s.port))
	require.NoError(s.t, s.cmd.Start())
	require.Eventually(s.t, func() bool {
		nc, err := nats.Connect(s.url())
		if err != nil {
			return false
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		_, err = js.AccountInfo(ctx)
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
}

func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	_ = s.cmd.Wait()
}

// A run of 30 steps with parallel tools, while every process dies in turn, the nats-server too.
func TestLongARunSurvivesTheDeathOfEveryProcessAndTheServer(t *testing.T) {
	srv := launchServer(t)
	s := newSystemOn(t, srv.url())
	deaths := append(s.processes(), func() {
		srv.kill()
		srv.start()
	})
	s.survives(30, deaths)
}

// Many runs wait for a person: they cost a process next to nothing, and it is ready soon after it has started.
func TestLongSuspendedRunsCostNoMemory(t *testing.T) {
	s := newSystem(t)
	s.model = func(turn int, _ []byte) ([]map[string]any, string) {
		if turn == 0 {
			return []map[string]any{call("a", "pay", `{"amount":50}`)}, ""
		}
		return nil, "done"
	}
	const count = 10_000
	first := s.node(true, true)
	var all sync.WaitGroup
	room := make(chan struct{}, 64)
	for range count {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			p, err := first.Accept(t.Context(), request())
			if err != nil {
				t.Error(err)
				return
			}
			_, err = p.Wait(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), "held") {
				t.Error(err)
			}
		})
	}
	all.Wait()
	held, err := first.HeldCalls(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, held, count)
	s.stop(first)
	none := newSystem(t)
	without := memory(t, launch(t, none.part("none", true, true)))
	with := memory(t, launch(t, s.part("many", true, true)))
	t.Logf("%d suspended runs: %d KiB without, %d KiB with", count, without>>10, with>>10)
	require.Less(t, with-without, 20<<20)
	begin := time.Now()
	second := s.node(true, true)
	t.Logf("ready after %s", time.Since(begin))
	require.Less(t, time.Since(begin), 2*time.Second)
	_, err = second.Decide(t.Context(), "acme", held[count/2].Call, []byte(`{"decision":"approve"}`), "ann")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, _, err := second.Peek(t.Context(), "acme", held[count/2].Call)
		return err == nil && c != nil && strings.Contains(text(t, c), "done")
	}, 30*time.Second, 20*time.Millisecond)
}

// memory is what a process has of it when it has settled.
func memory(t *testing.T, p *proc) (bytes int) {
	t.Helper()
	same := 0
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		require.NoError(t, err)
		pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
		require.NoError(t, err)
		if now := pages * os.Getpagesize(); now != bytes {
			bytes, same = now, 0
		} else {
			same++
		}
		return same > 20
	}, 30*time.Second, 100*time.Millisecond)
	return bytes
}
