package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// path is one way from a caller to the upstream and back, and the processes that it costs.
type path struct {
	name  string
	about string
	url   string // of a gateway or the proxy
	bus   string // of a nats-server, where url is empty
	procs []*exec.Cmd
}

// installation is everything that runs for the measurement.
type installation struct {
	ctx   context.Context
	dir   string
	paths []*path
	all   []*exec.Cmd
	up    string // URL of the upstream
}

// replica is the number of nodes of the cluster.
const replica = 3

// start builds the commands and starts the paths whose names match.
func (in *installation) start(which *regexp.Regexp) error {
	for _, pkg := range []string{"./cmd/gateway", "./cmd/worker", "github.com/nats-io/nats-server/v2"} {
		out := filepath.Join(in.dir, strings.TrimSuffix(filepath.Base(pkg), "/v2"))
		if filepath.Base(pkg) == "v2" {
			out = filepath.Join(in.dir, "nats-server")
		}
		if text, err := exec.CommandContext(in.ctx, "go", "build", "-o", out, pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
		}
	}
	_, up, err := in.helper("upstream", "-")
	if err != nil {
		return err
	}
	in.up = "http://" + up
	for _, p := range []struct {
		name string
		make func(name string) (*path, error)
	}{
		{"proxy", in.proxy}, {"bus", in.rawBus}, {"fused", in.embedded}, {"spread", in.embedded}, {"split", in.split},
		{"three nodes", in.split},
	} {
		if p.name != "proxy" && !which.MatchString(p.name) {
			continue
		}
		made, err := p.make(p.name)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		made.name = p.name
		in.paths = append(in.paths, made)
	}
	return nil
}

// stop ends every process, the latest first.
func (in *installation) stop() {
	for i := len(in.all) - 1; i >= 0; i-- {
		_ = in.all[i].Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(15*time.Second, func() { _ = in.all[i].Process.Kill() })
		_ = in.all[i].Wait()
		late.Stop()
	}
}

// helper starts this program in another role and returns the address that it serves.
func (in *installation) helper(args ...string) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	in.all = append(in.all, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("%s did not start: %w", args[0], err)
	}
	return cmd, strings.TrimSpace(strings.TrimPrefix(line, ready)), nil
}

// process starts one of the commands; what it says goes to a file.
func (in *installation) process(log, name string, args ...string) (*exec.Cmd, error) {
	f, err := os.Create(filepath.Join(in.dir, log+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the process has its own
	cmd := exec.Command(filepath.Join(in.dir, name), args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	in.all = append(in.all, cmd)
	return cmd, nil
}

func (in *installation) proxy(string) (*path, error) {
	cmd, at, err := in.helper("proxy", "-", in.up)
	return &path{about: "reverse proxy of Go's library", url: "http://" + at + "/v1/chat/completions",
		procs: []*exec.Cmd{cmd}}, err
}

func (in *installation) rawBus(string) (*path, error) {
	cmd, url, err := in.server("bus")
	if err != nil {
		return nil, err
	}
	echo, _, err := in.helper("echo", url)
	return &path{about: "request and reply through a nats-server", bus: url, procs: []*exec.Cmd{cmd, echo}}, err
}

func (in *installation) embedded(name string) (*path, error) {
	args := []string{"--data", filepath.Join(in.dir, name), "--nats-port", "-1"}
	about := "one process, hops over its own server"
	if name == "fused" {
		args, about = append(args, "--fuse"), "one process, stages called directly"
	}
	cmd, url, err := in.gateway(name, "", args...)
	p := &path{about: about, url: url, procs: []*exec.Cmd{cmd}}
	if err != nil {
		return nil, err
	}
	return p, in.answers(p)
}

// split is a gateway, a worker, and a nats-server or three.
func (in *installation) split(name string) (*path, error) {
	p := &path{about: "gateway, worker, nats-server"}
	nats, more := "", ""
	if name == "split" {
		cmd, url, err := in.server(name)
		if err != nil {
			return nil, err
		}
		p.procs, nats = append(p.procs, cmd), url
	} else {
		p.about = "gateway, worker, three nats-servers, everything replicated"
		more = fmt.Sprintf("nats: {replicas: %d}\n", replica)
		cmds, urls, err := in.cluster()
		if err != nil {
			return nil, err
		}
		p.procs, nats = append(p.procs, cmds...), urls
	}
	log := strings.ReplaceAll(name, " ", "-")
	gateway, url, err := in.gateway(log, more, "--nats", nats)
	if err != nil {
		return nil, err
	}
	worker, err := in.process(log+"-worker", "worker", "--nats", nats, "--config", in.config(log),
		"--stages", "all", "--serve", "model,tool")
	p.url, p.procs = url, append(p.procs, gateway, worker)
	if err != nil {
		return nil, err
	}
	return p, in.answers(p)
}

func (in *installation) config(name string) string { return filepath.Join(in.dir, name+".yaml") }

// gateway starts a gateway and waits until it lives; it is ready when its worker is there.
func (in *installation) gateway(name, more string, args ...string) (*exec.Cmd, string, error) {
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	text := fmt.Sprintf("version: 1\nmodels: {providers: [{name: mock, base-url: %q, models: [\"mock-*\"]}]}\n%s",
		in.up+"/v1", more)
	if err := os.WriteFile(in.config(name), []byte(text), 0o600); err != nil {
		return nil, "", err
	}
	at := fmt.Sprintf("127.0.0.1:%d", port)
	cmd, err := in.process(name, "gateway", append(args, "--http", at, "--admin", "none", "--config", in.config(name))...)
	if err != nil {
		return nil, "", err
	}
	url := "http://" + at + "/v1/chat/completions"
	return cmd, url, in.until("the gateway of "+name, func() bool {
		r, err := http.Get("http://" + at + "/livez")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// answers waits until a path answers a call.
func (in *installation) answers(p *path) error {
	ask, done, err := caller(p, cases[0], 1)
	if err != nil {
		return err
	}
	defer done()
	return in.until("the worker", func() bool { _, err := ask(in.ctx); return err == nil })
}

func (in *installation) server(name string) (*exec.Cmd, string, error) {
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	cmd, err := in.process(name+"-server", "nats-server", "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js",
		"-sd", filepath.Join(in.dir, name+"-js"))
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	if err == nil {
		err = in.until("nats-server", func() bool { return open(port) })
	}
	return cmd, url, err
}

func (in *installation) cluster() (cmds []*exec.Cmd, urls string, err error) {
	var client, route [replica]int
	var routes, list []string
	for i := range replica {
		if client[i], err = freePort(); err != nil {
			return nil, "", err
		}
		if route[i], err = freePort(); err != nil {
			return nil, "", err
		}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", route[i]))
		list = append(list, fmt.Sprintf("nats://127.0.0.1:%d", client[i]))
	}
	for i := range replica {
		name := fmt.Sprintf("node-%d", i)
		cmd, err := in.process(name, "nats-server", "-a", "127.0.0.1", "-p", strconv.Itoa(client[i]), "-js",
			"-sd", filepath.Join(in.dir, name+"-js"), "-n", name, "-cluster_name", "load",
			"-cluster", fmt.Sprintf("nats://127.0.0.1:%d", route[i]), "-routes", strings.Join(routes, ","))
		if err != nil {
			return nil, "", err
		}
		cmds = append(cmds, cmd)
	}
	return cmds, strings.Join(list, ","), in.until("the cluster", func() bool {
		return open(client[0]) && open(client[1]) && open(client[2])
	})
}

func open(port int) bool {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func (in *installation) until(what string, done func() bool) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return nil
		}
		if err := in.ctx.Err(); err != nil {
			return err
		}
	}
	return errors.New(what + " is not ready after a minute; run with -keep and read its log")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// cpu is the processor time that the processes of a path have used; zero where the system does not say it.
func (p *path) cpu() (total time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	for _, cmd := range p.procs {
		f, err := os.Open(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			continue
		}
		raw, _ := io.ReadAll(f)
		_ = f.Close()
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(fields) > 12 {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			total += time.Duration(user+system) * tick
		}
	}
	return total
}
