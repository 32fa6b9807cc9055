package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// otherClass is the work queue of calls whose class has none of its own.
const otherClass = "other"

// workQueue is one of the queues in SHALLOT_CALLS. Each class has its own, so that calls which wait for a provider that
// is away stop no others.
type workQueue struct {
	kind  messages.Kind
	class string
}

func (q workQueue) consumer() string { return string(q.kind) + "-" + messages.Token(q.class) }

func (c Config) queues() []workQueue {
	var out []workQueue
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		for _, class := range c.classes(kind) {
			if class != otherClass {
				out = append(out, workQueue{kind, class})
			}
		}
		out = append(out, workQueue{kind, otherClass})
	}
	return out
}

// queueOf is the class in whose queue calls of a class are stored.
func (c Config) queueOf(kind messages.Kind, class string) string {
	if slices.Contains(c.classes(kind), class) {
		return class
	}
	return otherClass
}

// Provision makes streams, consumers and buckets as this configuration needs them, or checks them if c.Verify is set;
// see jet.Provision. Any number of processes may do it at once, also while the server elects its leaders: what is not
// answered is asked again until ctx ends.
func Provision(ctx context.Context, js jetstream.JetStream, c Config) error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	for begin := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, objectTime)
		err := jet.Provision(try, js, newLayout(c), c.Verify)
		cancel()
		switch {
		case err == nil || !passing(err):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w; that was tried for %s: see whether enough servers of the cluster are up for %d replicas",
				err, time.Since(begin).Round(time.Second), c.Replicas)
		}
		_ = wait(ctx, 250*time.Millisecond)
	}
}

// passing reports whether the server may say something else in a moment.
func passing(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code == 503 || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) ||
			errors.Is(err, jetstream.ErrConsumerExists)
	}
	for _, known := range []error{context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders,
		nats.ErrReconnectBufExceeded, // the connection is away for a moment
		jetstream.ErrBucketExists,
		jetstream.ErrStreamNotFound, jetstream.ErrBucketNotFound} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// newLayout is what an installation of this configuration needs on the server.
func newLayout(c Config) jet.Layout {
	s := messages.Subjects{Root: c.Root}
	l := jet.Layout{Consumers: map[string][]jetstream.ConsumerConfig{}}
	const month = 30 * 24 * time.Hour
	kept := func(name, what, subject string) jetstream.StreamConfig {
		return jetstream.StreamConfig{Name: name, Description: what, Subjects: []string{subject},
			Retention: jetstream.LimitsPolicy,
			MaxAge:    month, MaxBytes: 1 << 30, Discard: jetstream.DiscardOld, Replicas: c.Replicas}
	}
	l.Streams = []jetstream.StreamConfig{{
		Name: jet.CallsStream, Description: "accepted calls, each stored once before anybody is told that it is accepted",
		Subjects: []string{s.EntryAll()}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxMsgs: c.EntryMaxMsgs, MaxBytes: c.EntryMaxBytes, Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	},
		kept(jet.AuditStream, "audit records: who, what, verdicts; no bodies", s.Control("audit", ">")),
		kept(jet.DeadStream, "dead letters with their reason; redrive or delete them", s.Control("dead", ">")),
		begunStream(c),
		responsesStream(c, month),
	}
	for _, q := range c.queues() {
		l.Consumers[jet.CallsStream] = append(l.Consumers[jet.CallsStream], jetstream.ConsumerConfig{
			Durable:       q.consumer(),
			Description:   "accepted " + string(q.kind) + " calls of class " + q.class + ", pulled by owners",
			FilterSubject: s.QueuedClass(q.kind, q.class), AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.AckWait,
			MaxDeliver: -1, MaxAckPending: -1, MaxWaiting: 4096,
		})
	}
	bucket := func(name, what string, ttl time.Duration) {
		l.Buckets = append(l.Buckets, jetstream.KeyValueConfig{
			Bucket: name, Description: what, TTL: ttl, History: 1, Replicas: c.Replicas, LimitMarkerTTL: time.Minute,
		})
	}
	// A key outlives its call's result: it counts from the acceptance, the result from the end.
	bucket(jet.ResultsBucket, "ends of calls, by tenant and call", c.ResultTTL)
	bucket(jet.IdempotencyBucket, "idempotency keys and the calls that they mean", c.ResultTTL+2*time.Hour)
	bucket(jet.PoisonBucket, "marks of calls whose owners died", 24*time.Hour)
	bucket(jet.CacheBucket, "cached results and memoised summaries", 24*time.Hour)
	bucket(jet.RetryBucket, "decided attempts of retry and fallback", 24*time.Hour)
	bucket(jet.TodoBucket, "todo lists, by tenant and session", 0)
	bucket(jet.ControlBucket, "switches: stage.<kind>.<name>.enabled", 0)
	bucket(jet.ToolsBucket, "tool definitions", 0)
	bucket(jet.RunsBucket, "agent runs", 0)
	bucket(jet.ApprovalsBucket, "questions that wait for a person", 0)
	bucket(jet.LimitsBucket, "call counters and budgets", 48*time.Hour)
	bucket(jet.OutcomesBucket, "outcomes that members could not keep, by tenant, call and run", c.ResultTTL)
	bucket(jet.OwnersBucket, "processes that own calls", 0)
	bucket(jet.MembersBucket, "processes that serve stages and targets", 0)
	l.Objects = []jetstream.ObjectStoreConfig{
		{Bucket: jet.BodiesObjects, Description: "bodies above the claim check limit", TTL: c.ResultTTL + time.Hour,
			Replicas: c.Replicas},
		{Bucket: jet.EvictedObjects, Description: "evicted tool results", TTL: c.ResultTTL, Replicas: c.Replicas},
	}
	return l
}

// begunStream is a bucket that only its leader is read from: what follows from a record of begun work must not follow
// from an old one.
func begunStream(c Config) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + jet.BegunBucket, Description: "work that must not run twice, by tenant, call and run",
		Subjects:          []string{kvSubject(jet.BegunBucket, ">")},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true, AllowRollup: true, AllowMsgTTL: true,
		Duplicates: 2 * time.Minute, Replicas: c.Replicas,
	}
}

// responsesStream is a bucket that only its leader is read from: a client that has seen the end of a response goes on
// from there at any gateway. When it is full, the oldest give way.
func responsesStream(c Config, age time.Duration) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + jet.ResponsesBucket, Description: "responses, their events, items and conversations, by tenant and key",
		Subjects: []string{kvSubject(jet.ResponsesBucket, ">")}, MaxMsgsPerSubject: 1, MaxAge: age, MaxBytes: 1 << 30,
		Discard: jetstream.DiscardOld, DenyDelete: true, AllowRollup: true, AllowMsgTTL: true, Duplicates: 2 * time.Minute,
		Replicas: c.Replicas,
	}
}
