package jet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Layout is everything that an installation needs on the server: one place, so that provisioning and verifying cannot
// differ.
type Layout struct {
	Streams   []jetstream.StreamConfig
	Consumers map[string][]jetstream.ConsumerConfig // by stream
	Buckets   []jetstream.KeyValueConfig
	Objects   []jetstream.ObjectStoreConfig
}

// Provision makes streams, consumers and buckets of a layout, or only checks them if verify is set.
// It is idempotent and safe to run from several processes at once. An existing stream or consumer that differs in
// what matters is an error that names the difference: a stale deploy must not change it silently.
func Provision(ctx context.Context, js jetstream.JetStream, l Layout, verify bool) error {
	info, err := js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("provision: JetStream does not answer: %w; start the server with -js, or give the account "+
			"JetStream", err)
	}
	if info.API.Level > 0 && info.API.Level < 2 {
		return fmt.Errorf("provision: the server's JetStream API level is %d; schedules need level 2 (nats-server 2.12)",
			info.API.Level)
	}
	for _, s := range l.Streams {
		if err := provisionStream(ctx, js, s, verify); err != nil {
			return fmt.Errorf("provision: stream %s: %w%s", s.Name, err, roomHint(err))
		}
		for _, cc := range l.Consumers[s.Name] {
			if err := provisionConsumer(ctx, js, s.Name, cc, verify); err != nil {
				return fmt.Errorf("provision: consumer %s of %s: %w", cc.Durable, s.Name, err)
			}
		}
	}
	for _, b := range l.Buckets {
		_, err := js.KeyValue(ctx, b.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) && !verify {
			_, err = js.CreateKeyValue(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("provision: bucket %s: %w", b.Bucket, err)
		}
	}
	for _, o := range l.Objects {
		_, err := js.ObjectStore(ctx, o.Bucket)
		if (errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)) && !verify {
			_, err = js.CreateObjectStore(ctx, o)
		}
		if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
			return fmt.Errorf("provision: object bucket %s: %w", o.Bucket, err)
		}
	}
	return nil
}

// noRoom is the server's code for a stream whose limit is above what it stores in all.
const noRoom = 10047

func roomHint(err error) string {
	if e, ok := errors.AsType[*jetstream.APIError](err); !ok || e.ErrorCode != noRoom {
		return ""
	}
	return "; the limits of all streams together are above what the server or the account may store (max_file_store, or " +
		"three quarters of the free disk): raise that, or lower bus.queue-max-bytes and explain.max-bytes"
}

func provisionStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, verify bool) error {
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) && !verify {
		_, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil // another process made it between
		}
		return err
	}
	if err != nil {
		return err
	}
	have := s.CachedInfo().Config
	switch {
	case have.Retention != want.Retention:
		return fmt.Errorf("retention is %s, needs %s; delete the stream or use another account", have.Retention,
			want.Retention)
	case want.AllowMsgSchedules && !have.AllowMsgSchedules:
		return errors.New("schedules are off; set allow_msg_schedules")
	case want.Discard == jetstream.DiscardNew && have.Discard != want.Discard:
		return fmt.Errorf("discard is %s, needs new: with old, accepted calls would be deleted silently", have.Discard)
	case want.Retention == jetstream.WorkQueuePolicy && have.MaxAge != 0:
		return errors.New("it has a limit that would delete or refuse accepted calls; remove it")
	}
	for _, subject := range want.Subjects {
		if !slices.Contains(have.Subjects, subject) {
			return fmt.Errorf("it does not hold subject %s; another installation with another root owns it", subject)
		}
	}
	return nil
}

func provisionConsumer(ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig,
	verify bool) error {
	have, err := js.Consumer(ctx, stream, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) && !verify {
		_, err = js.CreateConsumer(ctx, stream, want)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	h := have.CachedInfo().Config
	switch {
	case h.FilterSubject != want.FilterSubject:
		return fmt.Errorf("filter is %s, needs %s", h.FilterSubject, want.FilterSubject)
	case h.MaxDeliver != want.MaxDeliver:
		return fmt.Errorf("max deliver is %d, needs unlimited: a message whose deliveries ran out stays unseen", h.MaxDeliver)
	case len(h.BackOff) > 0:
		return errors.New("it has a back-off list, which replaces the ack wait; remove it")
	}
	if h.AckWait != want.AckWait || h.MaxAckPending != want.MaxAckPending {
		if verify {
			return fmt.Errorf("ack wait %s and max ack pending %d, the configuration says %s and %d",
				h.AckWait, h.MaxAckPending, want.AckWait, want.MaxAckPending)
		}
		h.AckWait, h.MaxAckPending = want.AckWait, want.MaxAckPending
		_, err = js.UpdateConsumer(ctx, stream, h)
	}
	return err
}
