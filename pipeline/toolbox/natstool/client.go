// Package natstool connects tools over NATS: it sends their calls, finds the services that declare themselves tools,
// and carries requests for MCP servers from one process to another. No other package of the tool box knows NATS.
package natstool

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// hdrChunk numbers the chunks of a tool's result from 1. hdrChunks names, in the request, the subject that they go to,
// which is the reply subject. In the answer it says that the chunks are the result, and how many there were.
const (
	hdrChunk  = "Shallot-Chunk"
	hdrChunks = "Shallot-Chunks"
)

// Client sends tool requests over NATS. An abandoned request is cancelled by a message. All answers come to one inbox,
// so that a worker's chunks and its answer arrive in the order in which it sent them. It is safe for concurrent use.
type Client struct {
	Conn     *nats.Conn
	Subjects messages.Subjects

	mu      sync.Mutex
	inbox   string
	waiting map[string]*request // by the last token of the reply subject
}

// request is one request under way.
type request struct {
	mu    sync.Mutex
	chunk func(text string)
	next  int  // number of the chunk that is expected
	gap   bool // a chunk is missing: those after it are dropped
	end   chan *nats.Msg
}

// maxPending bounds what waits in this process when the handler is slower than the workers, in bytes.
const maxPending = 256 << 20

// Request implements toolbox.Requester. The header Shallot-Cancel names the subject on which the tool hears that this
// request was abandoned, because its time was over or this process stops. The call may go on with another attempt, so
// it is not a cancellation of the call: that one comes on shallot.v1.cancel.<call>.
func (c *Client) Request(
	ctx context.Context, subject string, header map[string]string, body []byte, chunk func(text string),
) (toolbox.Response, error) {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for k, v := range header {
		m.Header[k] = []string{v}
	}
	if int64(len(body)) > c.Conn.MaxPayload()-8<<10 {
		f := messages.NewFault(messages.ToolError, "the arguments of %d bytes do not fit into a NATS message of %d; "+
			"raise max_payload of the server", len(body), c.Conn.MaxPayload())
		f.Unsent = true
		return toolbox.Response{}, f
	}
	call := header["Shallot-Call"]
	giveUp := c.Subjects.GiveUp(call, nuid.Next())
	w := &request{chunk: chunk, next: 1, end: make(chan *nats.Msg, 1)}
	reply, leave, err := c.enter(w)
	if err != nil {
		return toolbox.Response{}, err
	}
	defer leave()
	m.Reply = reply
	m.Header["Shallot-Cancel"] = []string{giveUp}
	m.Header[hdrChunks] = []string{reply}
	if err := c.Conn.PublishMsg(m); err != nil {
		return toolbox.Response{}, err
	}
	select {
	case m = <-w.end:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), pipeline.ErrCancelled) {
			giveUp = c.Subjects.Cancel(call)
		}
		_ = c.Conn.Publish(giveUp, nil) // best effort: nothing depends on its arrival
		return toolbox.Response{}, ctx.Err()
	}
	return w.answer(m, header["Shallot-Tool"])
}

// enter makes an address for the answers of one request. The first request makes the subscription, which lives as long
// as the connection.
func (c *Client) enter(w *request) (reply string, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox == "" {
		inbox := c.Conn.NewInbox()
		sub, err := c.Conn.Subscribe(inbox+".*", c.onReply)
		if err != nil {
			return "", nil, err
		}
		if err := sub.SetPendingLimits(-1, maxPending); err != nil {
			return "", nil, err
		}
		c.inbox, c.waiting = inbox, map[string]*request{}
	}
	token := nuid.Next()
	c.waiting[token] = w
	return c.inbox + "." + token, func() {
		c.mu.Lock()
		delete(c.waiting, token)
		c.mu.Unlock()
		w.mu.Lock()
		w.chunk = nil
		w.mu.Unlock()
	}, nil
}

func (c *Client) onReply(m *nats.Msg) {
	c.mu.Lock()
	w := c.waiting[m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]]
	c.mu.Unlock()
	if w == nil {
		return // a late answer
	}
	if v := m.Header.Get(hdrChunk); v != "" {
		w.take(v, m.Data)
		return
	}
	select {
	case w.end <- m:
	default: // a second answer
	}
}

// take passes on a chunk if it is the next one.
func (w *request) take(number string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := strconv.Atoi(number)
	switch {
	case w.gap || w.chunk == nil || err == nil && n > 0 && n < w.next:
		return // it came twice or too late
	case err != nil || n != w.next:
		w.gap = true
		return
	}
	w.next++
	w.chunk(string(data))
}

// answer reads the answer; chunks that come after it do not count.
func (w *request) answer(m *nats.Msg, tool string) (toolbox.Response, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return toolbox.Response{}, toolbox.ErrNoResponders
	}
	out := toolbox.Response{
		Body: m.Data, ErrorCode: m.Header.Get("Nats-Service-Error-Code"), ErrorText: m.Header.Get("Nats-Service-Error"),
	}
	out.RetryAfter, out.ContentType = m.Header.Get("Retry-After"), m.Header.Get("Content-Type")
	count := m.Header.Get(hdrChunks)
	if count == "" || out.ErrorCode != "" || out.ErrorText != "" {
		return out, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, err := strconv.Atoi(count); err != nil || n != w.next-1 || w.gap {
		return out, messages.NewFault(messages.ToolNetwork, "tool '%s' sent its result in %s chunks, of which %d came "+
			"in order from 1; number them in the header %s and send them before the answer, from one connection",
			tool, count, w.next-1, hdrChunk)
	}
	out.Chunked = true
	return out, nil
}
