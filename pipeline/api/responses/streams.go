package responses

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// The stream of a stored chat call is kept as long as its result, so that a client which lost its connection goes on
// after the last chunk that it has seen, at any gateway. The chunks are numbered from 0 by their place in the log. Each
// is in the log before anybody sees it.

// chatTime is how long such a stream can be read, from its last batch.
const chatTime = 24 * time.Hour

// Chat is the stream of a stored chat call.
type Chat struct {
	Call string `json:"call"`
	// Usage reports that the caller wants the chunk that tells the usage.
	Usage bool `json:"usage,omitempty"`

	k *Kept
	o Owner
	w *Writer
}

func chatID(call string) string { return "chat_" + call }

// KeepChat begins the log of a call's stream; nil if another stream of the call has begun one, or if the store does not
// answer: the stream is then one that cannot be resumed.
func (k *Kept) KeepChat(ctx context.Context, o Owner, call string, request []byte) *Chat {
	c := &Chat{Call: call, Usage: chat.WantsUsage(request), k: k, o: o}
	c.w = c.writer()
	if k.putFor(ctx, o.key("chat", call), c, pipeline.IfAbsent(), chatTime) != nil {
		return nil
	}
	return c
}

// Chat finds the log of a call's stream. The error is the fault not_found if the owner has none.
func (k *Kept) Chat(ctx context.Context, o Owner, call string) (*Chat, error) {
	c := &Chat{}
	_, err := k.get(ctx, o.key("chat", call), c)
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, missing("the stream of call", call)
	}
	if err != nil {
		return nil, fault(err)
	}
	c.k, c.o = k, o
	return c, nil
}

func (c *Chat) log() log { return log{k: c.k, o: c.o, id: chatID(c.Call), ttl: chatTime} }

func (c *Chat) writer() *Writer {
	return &Writer{log: c.log(), shape: func(chunk []byte) []byte { return chunk }}
}

// request is the caller's own request, as far as it says what the stream has.
func (c *Chat) request() []byte {
	if c.Usage {
		return []byte(`{"stream_options":{"include_usage":true}}`)
	}
	return []byte(`{}`)
}

// Add writes chunks. After an error it must not be used again: the log goes on from the end of the call. One goroutine
// uses it, of the process that has begun the log.
func (c *Chat) Add(ctx context.Context, chunks [][]byte) error { return c.w.Add(ctx, chunks) }

// Close ends the log, with the fault that ended the stream if there is one.
func (c *Chat) Close(ctx context.Context, f *messages.Fault) error {
	return c.w.end(ctx, batch{End: true, Fault: f})
}

// Next reads a batch of the log: its chunks, and whether it is the last; then fault is what ended the stream, nil if it
// ended well. The error is pipeline.ErrNotFound if the batch is not written yet.
func (c *Chat) Next(ctx context.Context, n int) (chunks [][]byte, last bool, fault *messages.Fault, err error) {
	b, err := c.log().read(ctx, n)
	return bytesOf(b.Events), b.End, b.Fault, err
}

// Mind ends the log by the end of the call, if that has come and the gateway that wrote the log has died. Any gateway
// may do it, and several at once: the log decides. It waits a moment for the end, and reports whether nothing more will
// be written.
func (c *Chat) Mind(ctx context.Context) (over bool, err error) {
	look, cancel := context.WithTimeout(ctx, lookTime)
	end, err := c.k.entry.Result(look, c.o.Tenant, c.Call)
	cancel()
	if f, ok := errors.AsType[*messages.Fault](err); end == nil && ok && f.Code == messages.NotFound {
		end = messages.NewCall(messages.Model, c.o.Tenant, nil)
		end.Fail(f)
	}
	if end == nil {
		return false, nil // it runs, waits for a person, or cannot be asked for now
	}
	return c.finish(ctx, end) == nil, nil // else it is done when somebody looks again
}

func (c *Chat) finish(ctx context.Context, end *messages.Call) error {
	for l := c.log(); ; {
		all, next, over, err := l.all(ctx)
		if err != nil || over {
			return err
		}
		follow := stream.NewFollower(c.request())
		for i, chunk := range all {
			follow.Delta(pipeline.Delta{Source: "log", N: i + 1, Chunk: chunk})
		}
		rest, f := follow.End(end)
		err = l.write(ctx, next, batch{Events: raws(rest), End: true, Fault: f})
		if !errors.Is(err, pipeline.ErrExists) {
			return err
		}
	}
}
