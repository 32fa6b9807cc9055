package bus

import (
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Config is the bus section of the configuration (contracts T4). The zero value of each field means its default.
type Config struct {
	Root          string        // subject root; shallot
	Fusion        bool          // consecutive stages of one process run without a hop between
	AckWait       time.Duration // of every lease; 10 s
	InFlight      int           // MaxAckPending for each kind; 256
	EntryMaxMsgs  int64         // 100,000
	EntryMaxBytes int64         // 4 GiB
	ClaimCheck    int           // bodies above travel as a reference; 256 KiB
	PoisonMarks   int           // marks that make a dead letter; 3
	HopBacklog    uint64        // entry workers stop pulling above it; 10,000
	ResultTTL     time.Duration // 24 h
	Replicas      int           // of streams and buckets; 1
	Verify        bool          // check streams and buckets, create none
	Drain         time.Duration // how long Stop waits for running work before it hands calls back; 8 s
	InboxPrefixes []string      // prefixes that reply addresses may have; _INBOX. and _INBOX_
	// Classes are the work queues of each kind of target: provider names, tool executors (contracts 18).
	ModelClasses []string
	ToolClasses  []string
	// Durable are the stage phases whose hops are stored checkpoints.
	Durable []StagePhase
}

// StagePhase names one phase of one stage.
type StagePhase struct {
	Kind  messages.Kind
	Phase messages.Phase
	Stage string
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Root == "" {
		c.Root = "shallot"
	}
	def(&c.AckWait, 10*time.Second)
	def(&c.ResultTTL, 24*time.Hour)
	def(&c.Drain, 8*time.Second)
	if c.InFlight == 0 {
		c.InFlight = 256
	}
	if c.EntryMaxMsgs == 0 {
		c.EntryMaxMsgs = 100_000
	}
	if c.EntryMaxBytes == 0 {
		c.EntryMaxBytes = 4 << 30
	}
	if c.ClaimCheck == 0 {
		c.ClaimCheck = 256 << 10
	}
	if c.PoisonMarks == 0 {
		c.PoisonMarks = 3
	}
	if c.HopBacklog == 0 {
		c.HopBacklog = 10_000
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if len(c.InboxPrefixes) == 0 {
		c.InboxPrefixes = []string{"_INBOX.", "_INBOX_"}
	}
	return c
}

// classes are the work queues that are provisioned for a kind.
func (c Config) classes(k messages.Kind) []string {
	switch k {
	case messages.Model:
		return c.ModelClasses
	case messages.Tool:
		return c.ToolClasses
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.AckWait < time.Second:
		return fmt.Errorf("bus.ack-wait: %s is under 1s; the marks could not keep a lease alive", c.AckWait)
	case c.InFlight < 1:
		return fmt.Errorf("bus.in-flight: %d; at least 1", c.InFlight)
	case c.Replicas > 5:
		return fmt.Errorf("nats.replicas: %d; at most 5", c.Replicas)
	}
	return nil
}
