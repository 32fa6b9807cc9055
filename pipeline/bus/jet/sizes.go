package jet

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Size returns how many bytes the bucket holds, and how many it may hold; 0: as many as there is room for.
func (b *Bucket) Size(ctx context.Context) (used, most int64, err error) {
	var info *jetstream.StreamInfo
	err = retryRequest(ctx, true, func(ctx context.Context) error {
		s, err := b.js.Stream(ctx, b.stream())
		if err == nil {
			info = s.CachedInfo()
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%s: size: %w", b.kv.Bucket(), err)
	}
	return int64(info.State.Bytes), max(info.Config.MaxBytes, 0), nil
}

func (b *Bucket) stream() string { return "KV_" + b.kv.Bucket() }

// sizeHeader is how long a message's body is, where the server leaves the body out.
const sizeHeader = "Nats-Msg-Size"

// Each calls f for each entry that was there when it began, the oldest first, with its key and about how many bytes it
// takes. It reads no values. f must be quick.
func (b *Bucket) Each(ctx context.Context, f func(key string, bytes int64)) error {
	fail := func(err error) error { return fmt.Errorf("%s: sizes: %w", b.kv.Bucket(), err) }
	prefix := "$KV." + b.kv.Bucket() + "."
	c, err := b.js.OrderedConsumer(ctx, b.stream(), jetstream.OrderedConsumerConfig{HeadersOnly: true,
		DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return fail(err)
	}
	info, err := c.Info(ctx)
	if err != nil {
		return fail(err)
	}
	if info.NumPending == 0 {
		return nil
	}
	msgs, err := c.Messages()
	if err != nil {
		return fail(err)
	}
	defer msgs.Stop()
	for {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fail(err)
		}
		n, _ := strconv.ParseInt(m.Headers().Get(sizeHeader), 10, 64)
		for name, values := range m.Headers() {
			n += int64(len(name) + len(strings.Join(values, "")))
		}
		if m.Headers().Get("KV-Operation") == "" { // else it is the mark of one that was removed
			f(strings.TrimPrefix(m.Subject(), prefix), n+int64(len(m.Subject())))
		}
		meta, err := m.Metadata()
		if err != nil {
			return fail(err)
		}
		if meta.NumPending == 0 {
			return nil
		}
	}
}
