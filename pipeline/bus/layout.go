package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Provision makes streams, consumers and buckets as this configuration needs them, or checks them if c.Verify is set;
// see jet.Provision.
func Provision(ctx context.Context, js jetstream.JetStream, c Config) error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	return jet.Provision(ctx, js, newLayout(c), c.Verify)
}

// newLayout is what an installation of this configuration needs on the server.
func newLayout(c Config) jet.Layout {
	s := messages.Subjects{Root: c.Root}
	l := jet.Layout{Consumers: map[string][]jetstream.ConsumerConfig{}}
	l.Streams = []jetstream.StreamConfig{{
		Name: jet.CallsStream, Description: "accepted calls, each stored once before anybody is told that it is accepted",
		Subjects: []string{s.EntryAll()}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxMsgs: c.EntryMaxMsgs, MaxBytes: c.EntryMaxBytes, Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	}, {
		Name: jet.HopsStream, Description: "stored hops: checkpoints, targets and schedules of accepted calls; no limits on purpose",
		Subjects: s.HopSpace(), Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowMsgTTL: true,
		Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	}, {
		Name: jet.AuditStream, Description: "audit records: who, what, verdicts; no bodies",
		Subjects: []string{s.Control("audit", ">")}, Retention: jetstream.LimitsPolicy, MaxAge: 30 * 24 * time.Hour,
		MaxBytes: 1 << 30, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
	}, {
		Name: jet.DeadStream, Description: "dead letters with their reason; redrive or delete them",
		Subjects: []string{s.Control("dead", ">")}, Retention: jetstream.LimitsPolicy, MaxAge: 30 * 24 * time.Hour,
		MaxBytes: 1 << 30, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
	}}
	durable := func(stream, name, subject, what string) {
		l.Consumers[stream] = append(l.Consumers[stream], jetstream.ConsumerConfig{
			Durable: name, Description: what, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: c.InFlight, MaxWaiting: 4096,
		})
	}
	for _, k := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		durable(jet.CallsStream, "entry-"+string(k), s.Entry(k, false), "accepted "+string(k)+" calls, pulled by the entry role")
		durable(jet.CallsStream, "nested-"+string(k), s.Entry(k, true), "accepted "+string(k)+" calls that stages and agents make")
		durable(jet.HopsStream, "route-"+string(k), s.Route(k), string(k)+" calls after their target or after a delay, pulled by the entry role")
	}
	for _, class := range c.ModelClasses {
		durable(jet.HopsStream, "model-"+messages.Token(class), s.Target(messages.Model, class), "model calls for provider "+class)
	}
	for _, class := range c.ToolClasses {
		durable(jet.HopsStream, "tool-"+messages.Token(class), s.Target(messages.Tool, class), "tool calls for executor "+class)
	}
	for _, d := range c.Durable {
		durable(jet.HopsStream, durableName(d.Kind, d.Phase, d.Stage), s.Stage(d.Kind, d.Phase, d.Stage),
			string(d.Phase)+" of the durable "+string(d.Kind)+" stage "+d.Stage)
	}
	bucket := func(name, what string, ttl time.Duration) {
		l.Buckets = append(l.Buckets, jetstream.KeyValueConfig{
			Bucket: name, Description: what, TTL: ttl, History: 1, Replicas: c.Replicas, LimitMarkerTTL: time.Minute,
		})
	}
	bucket(jet.ResultsBucket, "ends of calls, by tenant and call", c.ResultTTL)
	bucket(jet.IdempotencyBucket, "idempotency keys and the calls that they mean", c.ResultTTL)
	bucket(jet.PoisonBucket, "marks of calls whose holders died", 24*time.Hour)
	bucket(jet.CacheBucket, "cached results and memoised summaries", 24*time.Hour)
	bucket(jet.RetryBucket, "decided attempts of retry and fallback", 24*time.Hour)
	bucket(jet.TodoBucket, "todo lists, by tenant and session", 0)
	bucket(jet.ControlBucket, "switches: stage.<kind>.<name>.enabled", 0)
	bucket(jet.ToolsBucket, "tool definitions", 0)
	bucket(jet.RunsBucket, "agent runs", 0)
	bucket(jet.ApprovalsBucket, "questions that wait for a person", 0)
	bucket(jet.IntentsBucket, "paid and non-idempotent work under way", c.ResultTTL)
	bucket(jet.LimitsBucket, "call counters and budgets", 48*time.Hour)
	l.Objects = []jetstream.ObjectStoreConfig{
		{Bucket: jet.BodiesObjects, Description: "bodies above the claim check limit", TTL: c.ResultTTL + time.Hour, Replicas: c.Replicas},
		{Bucket: jet.EvictedObjects, Description: "evicted tool results", TTL: c.ResultTTL, Replicas: c.Replicas},
	}
	return l
}
