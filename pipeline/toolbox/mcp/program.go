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
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// program is a transport to an MCP server that is a program on this machine. Connect starts it, its stdin and stdout
// carry the messages, and when Close returns it has ended, with everything that it started.
type program struct {
	command []string
	env     map[string]string
	log     *slog.Logger
	// hurry skips the time in which the program may end by itself, because it works on nothing that anyone waits for.
	hurry atomic.Bool
}

// endStep is the time for each step of ending a program: stdin closed, SIGTERM, SIGKILL.
const endStep = 2 * time.Second

// Connect implements mcp.Transport.
func (p *program) Connect(ctx context.Context) (mcp.Connection, error) {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Env = []string{}
	for k, v := range p.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stderr = &lineLog{log: p.log}
	cmd.WaitDelay = endStep // a child may hold its stderr open
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
	lines := &messageLines{from: bufio.NewReaderSize(out, 64<<10), log: p.log}
	return (&mcp.IOTransport{Reader: io.NopCloser(lines), Writer: end}).Connect(ctx)
}

// programEnd writes to a program, and ends the program when it is closed.
type programEnd struct {
	io.Writer
	stdin   io.Closer
	cmd     *exec.Cmd
	program *program
	once    sync.Once
	err     error
}

// Close closes the program's stdin, which asks it to end. If it does not, its whole process group gets signals.
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
				p.program.log.Warn("an MCP server did not end when it was told to; it is killed")
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

// messageLines passes on the messages on a program's stdout, each on one line, and drops everything else: many programs
// print a greeting or a log line there, and such a line must not end the connection with all calls on it.
type messageLines struct {
	from *bufio.Reader
	log  *slog.Logger
	out  []byte
	part []byte // the beginning of a message that is written over several lines
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
		if len(line)+len(m.part)+len(piece) > mcp.DefaultMaxLineLength {
			return nil, m.tooLong(append(line, piece...), err)
		}
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// tooLong reads a message that is too long to its end, and fails the call that it answers.
func (m *messageLines) tooLong(line []byte, err error) error {
	line = append(m.part, line...)
	head, tail := line[:min(len(line), shownLine)], bytes.Clone(line[len(line)-min(len(line), shownLine):])
	for errors.Is(err, bufio.ErrBufferFull) {
		var piece []byte
		piece, err = m.from.ReadSlice('\n')
		if tail = append(tail, piece...); len(tail) > shownLine {
			tail = tail[len(tail)-shownLine:]
		}
	}
	m.part = nil
	m.broken(head, tail, fmt.Sprintf("its answer is longer than %d bytes", mcp.DefaultMaxLineLength))
	return err
}

// shownLine is how much of either end of a message is searched for its id.
const shownLine = 4 << 10

// lastID finds an id at the end of a message, where some servers write it.
var lastID = regexp.MustCompile(`[{,]\s*"id"\s*:\s*([0-9]+|"[^"\\]*")\s*(?:,\s*"jsonrpc"\s*:\s*"2.0"\s*)?\}\s*$`)

// broken fails the call whose answer cannot be read, with an error that seems to come from the server. ok is false if
// the message does not say which call that is.
func (m *messageLines) broken(head, tail []byte, why string) (ok bool) {
	id := []byte(gjson.GetBytes(head, "id").Raw)
	if !json.Valid(id) || !bytes.Contains(head, []byte(`"jsonrpc"`)) {
		found := lastID.FindSubmatch(tail)
		if id = nil; found != nil {
			id = found[1]
		}
	}
	if len(id) == 0 || gjson.GetBytes(head, "method").Exists() {
		return false
	}
	m.log.Warn("an answer of an MCP server cannot be read; its call ends", "id", string(id), "reason", why)
	m.out = append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), `,"error":{"code":-32603,"message":`...)
	m.out = append(append(m.out, rawjson.Encode(why)...), "}}\n"...)
	return true
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
	const unreadable = "its answer is not valid JSON"
	switch {
	case bytes.Contains(text, []byte(`"jsonrpc"`)) && text[0] == '{' && m.broken(text, text, unreadable):
		return
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
	m.log.Debug("an MCP server wrote something on stdout that is not a message; it is dropped",
		"line", toolbox.Short(string(text[:min(len(text), 1000)])))
}

// isMessage reports whether a line is a JSON-RPC message, or a batch of them.
func isMessage(line []byte) bool {
	return (line[0] == '{' && gjson.GetBytes(line, "jsonrpc").String() == "2.0" ||
		line[0] == '[' && gjson.GetBytes(line, "0.jsonrpc").String() == "2.0") && json.Valid(line)
}
