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
	n int // the next batch
}

func chatID(call string) string { return "chat_" + call }

// KeepChat begins the log of a call's stream; nil if another stream of the call has begun one, or if the store does not
// answer: the stream is then one that cannot be resumed.
func (k *Kept) KeepChat(ctx context.Context, o Owner, call string, request []byte) *Chat {
	c := &Chat{Call: call, Usage: chat.WantsUsage(request), k: k, o: o}
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

// Add writes chunks. After an error it must not be used again: the log goes on from the end of the call. One goroutine
// uses it.
func (c *Chat) Add(ctx context.Context, chunks [][]byte) error {
	return c.write(ctx, batch{Events: raws(chunks)})
}

// Close ends the log, with the fault that ended the stream if there is one.
func (c *Chat) Close(ctx context.Context, f *messages.Fault) error {
	return c.write(ctx, batch{End: true, Fault: f})
}

func (c *Chat) write(ctx context.Context, b batch) error {
	err := c.k.putFor(ctx, c.o.events(chatID(c.Call), c.n), b, pipeline.IfAbsent(), chatTime)
	c.n++
	return err
}

// Next reads a batch of the log: its chunks, and whether it is the last; then fault is what ended the stream, nil if it
// ended well. The error is pipeline.ErrNotFound if the batch is not written yet.
func (c *Chat) Next(ctx context.Context, n int) (chunks [][]byte, last bool, fault *messages.Fault, err error) {
	var b batch
	if _, err := c.k.get(ctx, c.o.events(chatID(c.Call), n), &b); err != nil {
		return nil, false, nil, err
	}
	return bytesOf(b.Events), b.End, b.Fault, nil
}

// Finish ends the log by the end of the call, where the gateway that wrote it has died. Any gateway may do it, and
// several at once: the log decides.
func (c *Chat) Finish(ctx context.Context, end *messages.Call) error {
	for {
		request := []byte(`{}`)
		if c.Usage {
			request = []byte(`{"stream_options":{"include_usage":true}}`)
		}
		follow, seen := stream.NewFollower(request), 0
		for c.n = 0; ; c.n++ {
			chunks, last, _, err := c.Next(ctx, c.n)
			if errors.Is(err, pipeline.ErrNotFound) {
				break
			}
			if err != nil || last {
				return err
			}
			for _, chunk := range chunks {
				seen++
				follow.Delta(pipeline.Delta{Source: "log", N: seen, Chunk: chunk})
			}
		}
		rest, f := follow.End(end)
		err := c.write(ctx, batch{Events: raws(rest), End: true, Fault: f})
		if !errors.Is(err, pipeline.ErrExists) {
			return err
		}
	}
}
