//go:build long && unix

package process

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// silent is a provider that accepts every connection and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var held []net.Conn
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepting
		for _, c := range held {
			_ = c.Close()
		}
	})
	return "http://" + l.Addr().String() + "/v1"
}

// p99 is the time that a hundredth of the calls exceeds, of so many from eight callers.
func p99(t *testing.T, base string, calls int) time.Duration {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var took []time.Duration
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range calls / 8 {
				begin := time.Now()
				res, err := client.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(echo))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Error(res.Status)
				}
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	require.NotEmpty(t, took)
	slices.Sort(took)
	return took[len(took)*99/100]
}

// Eight thousand callers over HTTP that wait for a provider that does not answer hold up no call of another: p99 stays
// within half as much again of what a gateway without them has (BU-3).
func TestLongCallersOfADeadProviderDoNotHoldUpOthers(t *testing.T) {
	const (
		callers = 8000 // each takes a descriptor of both sides
		slots   = 1024 // bus.slots.model
		queue   = 256  // beyond them, in the worker
	)
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "version: 1\nbus: {max-queue-wait: 1h}\n"+
		"models:\n  providers:\n    - {name: dead, base-url: %q, models: [dead]}\n"+
		"  timeouts: {first-byte: 10m, attempt: 10m, total: 10m}\n", silent(t)), 0o600))
	gateway := func() string {
		c := newCluster(t)
		c.worker("--config", file).ready(t)
		_, base := c.gateway("--config", file)
		return base
	}
	base, beside := gateway(), gateway()
	body := strings.ReplaceAll(echo, "demo/echo", "dead")
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
	for range callers {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, request)
		require.NoError(t, err)
	}
	lined := regexp.MustCompile(`shallot_line_waiting\{[^}]*class="dead"[^}]*\} (\S+)`)
	require.Eventually(t, func() bool {
		a, err := httpDo(t.Context(), http.MethodGet, base+"/metrics", "")
		m := lined.FindSubmatch(a.body)
		if err != nil || m == nil {
			return false
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		return err == nil && n >= callers-slots-queue
	}, 2*time.Minute, time.Second)
	var without, with []time.Duration
	for range 5 { // in turn, because other work on the machine comes and goes
		without, with = append(without, p99(t, beside, 2000)), append(with, p99(t, base, 2000))
	}
	t.Logf("p99 %s without, %s with %d callers of a dead provider", without, with, callers)
	require.Less(t, slices.Min(with), slices.Min(without)*3/2+time.Millisecond)
}
