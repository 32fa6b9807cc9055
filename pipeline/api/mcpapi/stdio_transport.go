package mcpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// stdioTransport is MCP on stdin and stdout, with one message on each line. A line that is not a message is answered
// with an error and does not end the session. The end of stdin ends the session after the calls that came before it are
// answered. A request that its caller cancelled is not answered.
type stdioTransport struct {
	in    io.ReadCloser
	out   io.WriteCloser
	limit int             // of a line, in bytes
	stop  <-chan struct{} // when closed, nothing more is read, as at the end of stdin
}

var _ mcp.Transport = stdioTransport{}

// Connect implements mcp.Transport.
func (l stdioTransport) Connect(context.Context) (mcp.Connection, error) {
	c := &stdioConn{
		stdioTransport: l, got: make(chan []byte), closed: make(chan struct{}), open: map[string]*stdioCall{},
		changed: make(chan struct{}, 1),
	}
	go c.read()
	return c, nil
}

// stdioCall is a request that has not been answered yet.
type stdioCall struct {
	cancelled bool
	batch     *stdioBatch
}

// stdioBatch gathers the answers to a batch, which revisions before 2025-06-18 allow.
type stdioBatch struct {
	left    int
	answers []json.RawMessage
}

type stdioConn struct {
	stdioTransport
	got    chan []byte // whole lines; closed at the end of stdin
	queue  []jsonrpc.Message
	once   sync.Once
	closed chan struct{}

	mu      sync.Mutex
	open    map[string]*stdioCall
	changed chan struct{} // a call was answered
	batches bool          // the revision has batches
}

// read passes on lines until stdin ends. After Close it may still block reading stdin, until the process ends.
func (c *stdioConn) read() {
	defer close(c.got)
	r := bufio.NewReaderSize(c.in, 64<<10)
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if !long {
			line = append(line, part...)
			if long = len(line) > c.limit; long {
				line = nil
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if long {
			c.refuse(nil, jsonrpc.CodeInvalidRequest,
				fmt.Sprintf("the message is larger than %d bytes (http.body-limit)", c.limit))
		} else if text := bytes.TrimSpace(line); len(text) > 0 {
			select {
			case c.got <- bytes.Clone(text):
			case <-c.closed:
				return
			}
		}
		if err != nil {
			return
		}
		line, long = line[:0], false
	}
}

// Read implements mcp.Connection.
func (c *stdioConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		if len(c.queue) > 0 {
			next := c.queue[0]
			c.queue = c.queue[1:]
			return next, nil
		}
		select {
		case line, ok := <-c.got:
			if !ok {
				return nil, c.rest(ctx)
			}
			c.take(line)
		case <-c.stop:
			return nil, c.rest(ctx)
		case <-c.closed:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// rest waits until every call is answered, which ends the session.
func (c *stdioConn) rest(ctx context.Context) error {
	for {
		c.mu.Lock()
		left := len(c.open)
		c.mu.Unlock()
		if left == 0 {
			return io.EOF
		}
		select {
		case <-c.changed:
		case <-c.closed:
			return io.EOF
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take puts one line into the queue.
func (c *stdioConn) take(line []byte) {
	if !json.Valid(line) {
		c.refuse(nil, jsonrpc.CodeParseError,
			fmt.Sprintf("the line is not valid JSON: %.60q; send one message on each line", line))
		return
	}
	if f := api.JSONText(line); f != nil {
		c.refuse(idOf(line), jsonrpc.CodeInvalidRequest, f.Message)
		return
	}
	if line[0] != '[' {
		c.message(line, nil)
		return
	}
	c.mu.Lock()
	known := c.batches
	c.mu.Unlock()
	parts := rawjson.Elements(line)
	if !known || len(parts) == 0 {
		c.refuse(nil, jsonrpc.CodeInvalidRequest, "this revision of MCP has no batches; send one message on each line")
		return
	}
	b := &stdioBatch{}
	for _, p := range parts {
		c.message(p, b)
	}
}

func (c *stdioConn) message(raw []byte, b *stdioBatch) {
	m, err := jsonrpc.DecodeMessage(raw)
	if id := idOf(raw); !keptID(id) {
		c.refuse(id, jsonrpc.CodeInvalidRequest, changedID)
		return
	}
	if err != nil {
		c.refuse(idOf(raw), jsonrpc.CodeInvalidRequest, "the message cannot be read: "+err.Error())
		return
	}
	if r, ok := m.(*jsonrpc.Request); ok {
		if r.IsCall() && r.Method != "subscriptions/listen" { // that one is answered only when it is cancelled
			key := keyOf(r.ID)
			c.mu.Lock()
			_, twice := c.open[key]
			if !twice {
				c.open[key] = &stdioCall{batch: b}
				if b != nil {
					b.left++ // nothing is answered before the whole batch was read
				}
			}
			c.mu.Unlock()
			if twice {
				c.refuse(idOf(raw), jsonrpc.CodeInvalidRequest,
					"a request with this id is not answered yet; give every request its own id")
				return
			}
		}
		switch r.Method {
		case "notifications/cancelled":
			c.cancelled(r.Params)
		case "initialize":
			c.mu.Lock()
			c.batches = gjson.GetBytes(r.Params, "protocolVersion").String() < "2025-06-18"
			c.mu.Unlock()
		}
	}
	c.queue = append(c.queue, m)
}

// cancelled marks a call, so that its answer is not sent.
func (c *stdioConn) cancelled(params json.RawMessage) {
	var p struct {
		ID any `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	id, err := jsonrpc.MakeID(p.ID)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.open[keyOf(id)]; call != nil {
		call.cancelled = true
	}
}

// keyOf distinguishes the id 1 from the id "1".
func keyOf(id jsonrpc.ID) string { return fmt.Sprintf("%T %v", id.Raw(), id.Raw()) }

// Write implements mcp.Connection.
func (c *stdioConn) Write(_ context.Context, m jsonrpc.Message) error {
	raw, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := m.(*jsonrpc.Response); ok {
		if raw = c.answered(r, raw); raw == nil {
			return nil
		}
	}
	_, err = c.out.Write(append(raw, '\n'))
	return err
}

// answered notes the end of a call and returns what to write: nothing if the call was cancelled, or if others of its
// batch are not answered yet.
func (c *stdioConn) answered(r *jsonrpc.Response, raw []byte) []byte {
	key := keyOf(r.ID)
	call := c.open[key]
	if call == nil {
		return raw
	}
	delete(c.open, key)
	wake(c.changed)
	if b := call.batch; b != nil {
		b.left--
		if !call.cancelled {
			b.answers = append(b.answers, raw)
		}
		if b.left > 0 || len(b.answers) == 0 {
			return nil
		}
		return rawjson.Encode(b.answers)
	}
	if call.cancelled {
		return nil
	}
	return raw
}

// refuse answers a message that is not a valid request.
func (c *stdioConn) refuse(id json.RawMessage, code int64, message string) {
	raw := rawjson.Encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"` // null if there is none: JSON-RPC requires the field
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, &jsonrpc.Error{Code: code, Message: message}})
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.out.Write(append(raw, '\n'))
}

// Close implements mcp.Connection.
func (c *stdioConn) Close() error {
	c.once.Do(func() { close(c.closed); _ = c.in.Close() })
	return nil
}

// SessionID implements mcp.Connection.
func (c *stdioConn) SessionID() string { return "" }
