package spine

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Provision makes streams and buckets as this configuration needs them, or checks them if c.Verify is set; see
// jet.Provision.
func Provision(ctx context.Context, js jetstream.JetStream, c Config) error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	return jet.Provision(ctx, js, newLayout(c), c.Verify)
}

// newLayout is what an installation of this configuration needs on the server.
func newLayout(c Config) jet.Layout {
	l := jet.Layout{Streams: streams(c), Consumers: map[string][]jetstream.ConsumerConfig{}}
	bucket := func(name, what string, ttl time.Duration) {
		l.Buckets = append(l.Buckets, jetstream.KeyValueConfig{
			Bucket: name, Description: what, TTL: ttl, History: 1, Replicas: c.Replicas, LimitMarkerTTL: time.Minute,
		})
	}
	bucket(jet.ResultsBucket, "ends of calls, by tenant and call", c.ResultTTL)
	bucket(jet.IdempotencyBucket, "idempotency keys and the calls that they mean", c.ResultTTL)
	bucket(jet.PoisonBucket, "marks of calls whose owners died", 24*time.Hour)
	bucket(jet.CacheBucket, "cached results and memoised summaries", 24*time.Hour)
	bucket(jet.RetryBucket, "decided attempts of retry and fallback", 24*time.Hour)
	bucket(jet.TodoBucket, "todo lists, by tenant and session", 0)
	bucket(jet.ControlBucket, "switches: stage.<kind>.<name>.enabled", 0)
	bucket(jet.ToolsBucket, "tool definitions", 0)
	bucket(jet.RunsBucket, "agent runs", 0)
	bucket(jet.ApprovalsBucket, "questions that wait for a person", 0)
	bucket(jet.LimitsBucket, "call counters and budgets", 48*time.Hour)
	bucket(jet.OwnersBucket, "processes that run calls; a mark lives as long as its process refreshes it", 0)
	bucket(jet.MembersBucket, "processes that serve stages and targets, and which", 0)
	bucket(jet.OutcomesBucket, "outcomes of work that its member could not keep", c.ResultTTL)
	l.Objects = []jetstream.ObjectStoreConfig{
		{Bucket: jet.BodiesObjects, Description: "bodies above the claim check limit", TTL: c.ResultTTL + time.Hour, Replicas: c.Replicas},
		{Bucket: jet.EvictedObjects, Description: "evicted tool results", TTL: c.ResultTTL, Replicas: c.Replicas},
	}
	return l
}

func streams(c Config) []jetstream.StreamConfig {
	s := messages.Subjects{Root: c.Root}
	begun := "$KV." + jet.BegunBucket + ".>"
	kept := func(name, what, subject string) jetstream.StreamConfig {
		return jetstream.StreamConfig{Name: name, Description: what, Subjects: []string{subject}, MaxAge: 30 * 24 * time.Hour,
			MaxBytes: 1 << 30, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Replicas: c.Replicas}
	}
	return []jetstream.StreamConfig{{
		Name: jet.CallsStream, Description: "accepted calls, each stored once before anybody is told that it is accepted",
		Subjects: []string{s.EntryAll()}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxMsgs: c.EntryMaxMsgs, MaxBytes: c.EntryMaxBytes, Replicas: c.Replicas, Duplicates: 2 * time.Minute,
	},
		kept(jet.AuditStream, "audit records: who, what, verdicts; no bodies", s.Control("audit", ">")),
		kept(jet.DeadStream, "dead letters with their reason; redrive or delete them", s.Control("dead", ">")),
		{
			// A bucket whose records are read from the leader only: an old copy would let work run twice. So it is made as
			// the stream that it is.
			Name: "KV_" + jet.BegunBucket, Description: "work that must not run twice, once it has begun",
			Subjects: []string{begun}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true,
			AllowRollup: true, AllowMsgTTL: true, Replicas: c.Replicas, Duplicates: 2 * time.Minute,
		},
	}
}
