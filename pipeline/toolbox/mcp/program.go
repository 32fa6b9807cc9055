package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/tidwall/gjson"
)

// program is a transport to an MCP server that is a program of this machine: it is started by Connect, speaks over its
// stdin and stdout, and has ended, with everything that it started itself, when Close returns.
type program struct {
	command []string
	env     map[string]string
	log     *slog.Logger
	// hurry leaves out the time that the program is given to end by itself: it is known to be at work for nobody.
	hurry atomic.Bool
}

// endStep is how long a program is given for each step of its end: stdin closed, SIGTERM, SIGKILL.
const endStep = 2 * time.Second

// Connect implements mcp.Transport.
func (p *program) Connect(ctx context.Context) (mcp.Connection, error) {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env = []string{}
	for k, v := range p.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stderr = &lineLog{log: p.log}
	cmd.WaitDelay = endStep // a child of its own may hold its stderr open
	apart(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := &programEnd{Writer: in, stdin: in, cmd: cmd, program: p}
	return (&mcp.IOTransport{Reader: io.NopCloser(&messageLines{from: bufio.NewReaderSize(out, 64<<10), log: p.log}), Writer: end}).Connect(ctx)
}

// programEnd writes to a program, and ends it when it is closed.
type programEnd struct {
	io.Writer
	stdin   io.Closer
	cmd     *exec.Cmd
	program *program
	once    sync.Once
	err     error
}

// Close closes the program's stdin, which asks it to end, then says so by signals to its whole process group.
func (p *programEnd) Close() error {
	p.once.Do(func() {
		_ = p.stdin.Close()
		done := make(chan struct{})
		go func() { _ = p.cmd.Wait(); close(done) }()
		ended := func() bool {
			select {
			case <-done:
				return true
			case <-time.After(endStep):
				return false
			}
		}
		if p.program.hurry.Load() || !ended() {
			signalGroup(p.cmd, syscall.SIGTERM)
			if !ended() {
				p.program.log.Warn("an MCP server did not end when it was asked to; it is killed")
				signalGroup(p.cmd, syscall.SIGKILL)
				if !ended() {
					p.err = fmt.Errorf("process %d does not end", p.cmd.Process.Pid)
				}
			}
		}
		endOrphans(p.cmd)
	})
	return p.err
}

// messageLines passes on the messages of a program's stdout, each on one line, and leaves out what is none: many
// programs print a greeting or a log line there, and one such line must not end the connection with all calls on it.
type messageLines struct {
	from *bufio.Reader
	log  *slog.Logger
	out  []byte
	part []byte // a message that is written over several lines, so far
	err  error
}

// Read implements io.Reader.
func (m *messageLines) Read(p []byte) (int, error) {
	for len(m.out) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		line, err := m.line()
		m.err = err
		m.take(line)
	}
	n := copy(p, m.out)
	m.out = m.out[n:]
	return n, nil
}

// line reads up to the next line end.
func (m *messageLines) line() (line []byte, err error) {
	for {
		piece, err := m.from.ReadSlice('\n')
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
		if len(line)+len(m.part) > mcp.DefaultMaxLineLength {
			return nil, fmt.Errorf("the program wrote a message above %d bytes", mcp.DefaultMaxLineLength)
		}
	}
}

func (m *messageLines) take(line []byte) {
	text := bytes.TrimSpace(line)
	if len(text) == 0 {
		return
	}
	if isMessage(text) {
		m.out, m.part = append(text, '\n'), nil
		return
	}
	switch {
	case len(m.part) > 0:
		if m.part = append(m.part, line...); line[0] != '}' && line[0] != ']' {
			return
		}
		var whole bytes.Buffer
		if json.Compact(&whole, m.part) == nil && isMessage(whole.Bytes()) {
			whole.WriteByte('\n')
			m.out, m.part = whole.Bytes(), nil
			return
		}
		text, m.part = m.part, nil
	case errors.Is(json.NewDecoder(bytes.NewReader(text)).Decode(new(json.RawMessage)), io.ErrUnexpectedEOF):
		m.part = append(m.part, line...)
		return
	}
	m.log.Debug("an MCP server wrote something on stdout that is no message; it is left out", "line", toolbox.Short(string(text[:min(len(text), 1000)])))
}

// isMessage reports whether a line is a JSON-RPC message, or a batch of them.
func isMessage(line []byte) bool {
	return (line[0] == '{' && gjson.GetBytes(line, "jsonrpc").String() == "2.0" ||
		line[0] == '[' && gjson.GetBytes(line, "0.jsonrpc").String() == "2.0") && json.Valid(line)
}
