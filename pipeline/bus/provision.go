package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
)

// layout is everything that Shallot needs on the server: one place, so that provisioning and verifying cannot differ.
type layout struct {
	streams   []jetstream.StreamConfig
	consumers map[string][]jetstream.ConsumerConfig // by stream
	buckets   []jetstream.KeyValueConfig
	objects   []jetstream.ObjectStoreConfig
}

func newLayout(c Config) layout {
	s := messages.Subjects{Root: c.Root}
	l := layout{consumers: map[string][]jetstream.ConsumerConfig{}}
	l.streams = []jetstream.StreamConfig{{
		Name: CallsStream, Description: "accepted calls, each stored once before anybody is told that it is accepted",
		Subjects: []string{s.EntryAll()}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxMsgs: c.EntryMaxMsgs, MaxBytes: c.EntryMaxBytes, Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	}, {
		Name: HopsStream, Description: "stored hops: checkpoints, targets and schedules of accepted calls; no limits on purpose",
		Subjects: s.HopSpace(), Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowMsgTTL: true,
		Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	}, {
		Name: AuditStream, Description: "audit records: who, what, verdicts; no bodies",
		Subjects: []string{s.Control("audit", ">")}, Retention: jetstream.LimitsPolicy, MaxAge: 30 * 24 * time.Hour,
		MaxBytes: 1 << 30, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
	}, {
		Name: DeadStream, Description: "dead letters with their reason; redrive or delete them",
		Subjects: []string{s.Control("dead", ">")}, Retention: jetstream.LimitsPolicy, MaxAge: 30 * 24 * time.Hour,
		MaxBytes: 1 << 30, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
	}}
	durable := func(stream, name, subject, what string) {
		l.consumers[stream] = append(l.consumers[stream], jetstream.ConsumerConfig{
			Durable: name, Description: what, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: c.InFlight, MaxWaiting: 4096,
		})
	}
	for _, k := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		durable(CallsStream, "entry-"+string(k), s.Entry(k, false), "accepted "+string(k)+" calls, pulled by the entry role")
		durable(CallsStream, "nested-"+string(k), s.Entry(k, true), "accepted "+string(k)+" calls that stages and agents make")
		durable(HopsStream, "route-"+string(k), s.Route(k), string(k)+" calls after their target or after a delay, pulled by the entry role")
	}
	for _, class := range c.ModelClasses {
		durable(HopsStream, "model-"+messages.Token(class), s.Target(messages.Model, class), "model calls for provider "+class)
	}
	for _, class := range c.ToolClasses {
		durable(HopsStream, "tool-"+messages.Token(class), s.Target(messages.Tool, class), "tool calls for executor "+class)
	}
	for _, d := range c.Durable {
		durable(HopsStream, durableName(d.Kind, d.Phase, d.Stage), s.Stage(d.Kind, d.Phase, d.Stage),
			string(d.Phase)+" of the durable "+string(d.Kind)+" stage "+d.Stage)
	}
	bucket := func(name, what string, ttl time.Duration) {
		l.buckets = append(l.buckets, jetstream.KeyValueConfig{
			Bucket: name, Description: what, TTL: ttl, History: 1, Replicas: c.Replicas, LimitMarkerTTL: time.Minute,
		})
	}
	bucket(ResultsBucket, "ends of calls, by tenant and call", c.ResultTTL)
	bucket(IdempotencyBucket, "idempotency keys and the calls that they mean", c.ResultTTL)
	bucket(PoisonBucket, "marks of calls whose holders died", 24*time.Hour)
	bucket(CacheBucket, "cached results and memoised summaries", 24*time.Hour)
	bucket(RetryBucket, "decided attempts of retry and fallback", 24*time.Hour)
	bucket(TodoBucket, "todo lists, by tenant and session", 0)
	bucket(ControlBucket, "switches: stage.<kind>.<name>.enabled", 0)
	bucket(ToolsBucket, "tool definitions", 0)
	bucket(RunsBucket, "agent runs", 0)
	bucket(ApprovalsBucket, "questions that wait for a person", 0)
	bucket(IntentsBucket, "paid and non-idempotent work under way", c.ResultTTL)
	bucket(LimitsBucket, "call counters and budgets", 48*time.Hour)
	l.objects = []jetstream.ObjectStoreConfig{
		{Bucket: BodiesObjects, Description: "bodies above the claim check limit", TTL: c.ResultTTL + time.Hour, Replicas: c.Replicas},
		{Bucket: EvictedObjects, Description: "evicted tool results", TTL: c.ResultTTL, Replicas: c.Replicas},
	}
	return l
}

// Provision makes streams, consumers and buckets as this configuration needs them, or checks them if c.Verify is set.
// It is idempotent and safe to run from several processes at once. An existing stream or consumer that differs in
// what matters is an error that names the difference: a stale deploy must not change it silently.
func Provision(ctx context.Context, js jetstream.JetStream, c Config) error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	info, err := js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("provision: JetStream does not answer: %w; start the server with -js, or give the account JetStream", err)
	}
	if info.API.Level > 0 && info.API.Level < 2 {
		return fmt.Errorf("provision: the server's JetStream API level is %d; schedules need level 2 (nats-server 2.12)", info.API.Level)
	}
	l := newLayout(c)
	for _, s := range l.streams {
		if err := provisionStream(ctx, js, s, c.Verify); err != nil {
			return fmt.Errorf("provision: stream %s: %w", s.Name, err)
		}
		for _, cc := range l.consumers[s.Name] {
			if err := provisionConsumer(ctx, js, s.Name, cc, c.Verify); err != nil {
				return fmt.Errorf("provision: consumer %s of %s: %w", cc.Durable, s.Name, err)
			}
		}
	}
	for _, b := range l.buckets {
		_, err := js.KeyValue(ctx, b.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) && !c.Verify {
			_, err = js.CreateKeyValue(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("provision: bucket %s: %w", b.Bucket, err)
		}
	}
	for _, o := range l.objects {
		_, err := js.ObjectStore(ctx, o.Bucket)
		if (errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)) && !c.Verify {
			_, err = js.CreateObjectStore(ctx, o)
		}
		if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
			return fmt.Errorf("provision: object bucket %s: %w", o.Bucket, err)
		}
	}
	return nil
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
		return fmt.Errorf("retention is %s, needs %s; delete the stream or use another account", have.Retention, want.Retention)
	case want.AllowMsgSchedules && !have.AllowMsgSchedules:
		return errors.New("schedules are off; set allow_msg_schedules")
	case want.Discard == jetstream.DiscardNew && have.Discard != want.Discard:
		return fmt.Errorf("discard is %s, needs new: with old, accepted calls would be deleted silently", have.Discard)
	case want.Retention == jetstream.WorkQueuePolicy && (have.MaxAge != 0 || want.Name == HopsStream && (have.MaxMsgs > 0 || have.MaxBytes > 0)):
		return errors.New("it has a limit that would delete or refuse accepted calls; remove it")
	}
	for _, subject := range want.Subjects {
		if !slices.Contains(have.Subjects, subject) {
			return fmt.Errorf("it does not hold subject %s; another installation with another root owns it", subject)
		}
	}
	return nil
}

func provisionConsumer(ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig, verify bool) error {
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
