//go:build unix

package golden

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

var update = flag.Bool("update", false, "write the answers under testdata anew")

// row is one file under testdata: exchanges one after the other. An exchange is a head line ("GET /path" or
// "NATS subject"), header lines, an empty line and a body. $call is the id that the answer before it gave, $session the
// MCP session; {long} is a text of two megabytes.
type row struct {
	name      string
	exchanges []string
}

// gateway is a running one.
type gateway struct {
	http string // host:port
	nats string // URL
	said apitest.Output
	nc   *nats.Conn
}

// build builds the gateway once for all tests.
func build(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("process test")
	}
	bin := filepath.Join(t.TempDir(), "gateway")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/shallot-nats/shallot/cmd/gateway").CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// start runs a gateway with an embedded server and the configuration, and waits until it is ready.
func start(t *testing.T, bin, config string, env ...string) *gateway {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	cmd := exec.Command(bin, "--config", file, "--http", "127.0.0.1:0", "--admin", "none", "--nats-port", "-1",
		"--data", filepath.Join(dir, "data"))
	g := &gateway{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &g.said, &g.said
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "SHALLOT_BUS__LAME_DUCK=0s"}, env...)
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	})
	ready := g.said.Await(t, done, `(?s)HTTP +http://(\S+)/v1.*NATS +(nats://\S+).*ready in`)
	g.http, g.nats = ready[1], ready[2]
	nc, err := nats.Connect(g.nats, nats.UserInfo("op", "op-key"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	g.nc = nc
	return g
}

// run plays the rows side by side; each has the answers of its file.
func (g *gateway) run(t *testing.T, rows []row) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var out strings.Builder
			call, session := "", ""
			for _, x := range r.exchanges {
				asked := strings.NewReplacer("$call", call, "$session", session).Replace(x)
				got, err := g.exchange(ctx, strings.ReplaceAll(asked, "{long}", strings.Repeat("long ", 400_000)))
				require.NoError(t, err, x)
				call = first(got, call, `(?m)^Shallot-Call: (\S+)`, `/v1/results/([0-9a-f-]{36})`)
				session = first(got, session, `(?m)^Mcp-Session-Id: (\S+)`)
				fmt.Fprintf(&out, ">>> %s\n<<< %s\n\n", strings.TrimSuffix(x, "\n"), strings.TrimSuffix(got, "\n"))
			}
			compare(t, r.name, normal(g, out.String()))
		})
	}
}

// first is what the first of the expressions finds, or what was.
func first(text, was string, exprs ...string) string {
	for _, e := range exprs {
		if m := regexp.MustCompile(e).FindStringSubmatch(text); m != nil {
			return m[1]
		}
	}
	return was
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "write it with -update, and read it")
	require.Equal(t, string(want), got)
}

func (g *gateway) exchange(ctx context.Context, text string) (string, error) {
	head, body, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	method, target, _ := strings.Cut(lines[0], " ")
	header := http.Header{}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ": ")
		header[name] = append(header[name], value)
	}
	switch method {
	case "NATS":
		return g.ask(ctx, target, nats.Header(header), body, false)
	case "NATS-STREAM":
		return g.ask(ctx, target, nats.Header(header), body, true)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+g.http+target, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header = header
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if n := res.Header.Get("Content-Length"); n == fmt.Sprint(len(raw)) && n != "0" {
		res.Header.Set("Content-Length", "<that of the body>")
	}
	return fmt.Sprintf("%s\n%s\n%s", res.Status, listed(res.Header), raw), err
}

// ask sends a NATS request; a streamed one is read to its empty message.
func (g *gateway) ask(ctx context.Context, subject string, h nats.Header, body string, stream bool) (string, error) {
	sub, err := g.nc.SubscribeSync(g.nc.NewInbox())
	if err != nil {
		return "", err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := g.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Header: h, Data: []byte(body)}); err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return out.String(), fmt.Errorf("%s: %w", subject, err)
		}
		fmt.Fprintf(&out, "message\n%s\n%s\n", listed(http.Header(m.Header)), m.Data)
		if !stream || len(m.Data) == 0 {
			return out.String(), nil
		}
	}
}

// listed is the headers by name, one a line.
func listed(h http.Header) string {
	var names []string
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		for _, v := range h[name] {
			fmt.Fprintf(&out, "%s: %s\n", name, v)
		}
	}
	return out.String()
}
