package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// connect starts the embedded server if no other is named, and connects.
func (h *Host) connect(ctx context.Context, o Options) error {
	c := h.Config.NATS
	conn := jet.ConnOptions{Name: o.Name, URL: c.URL.Reveal(), Context: c.Context, Creds: c.Creds, CA: c.TLS.CA,
		Cert: c.TLS.Cert, Key: c.TLS.Key, Direct: true, Log: o.Log}
	if conn.URL == "" && conn.Context == "" {
		dir, err := filepath.Abs(c.Embedded.Data)
		if err != nil {
			return fmt.Errorf("nats.embedded.data: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("nats.embedded.data: %w; name another directory with --data", err)
		}
		sync := c.Embedded.Sync.Interval
		if c.Embedded.Sync.Always {
			sync = 0
		}
		h.server, err = embed.Start(embed.Options{Dir: dir, Port: c.Embedded.Port, Sync: sync, Login: loginOf(o),
			Streams: streamBytes(&h.Config), Log: o.Log})
		if err != nil {
			return err
		}
		h.Embedded, h.URL = true, h.server.ClientURL()
		if c.Embedded.Port == 0 {
			h.URL = inProcess
		}
		conn.InProcess = h.server
		conn.User, conn.Password = h.server.Own()
	}
	nc, err := jet.ConnectWithin(ctx, conn, c.Wait)
	if err != nil {
		return err
	}
	h.Conn = nc
	h.denied.watch(nc, h.Config.Bus.Root)
	if h.URL == "" {
		h.URL = nc.ConnectedUrlRedacted()
	}
	return nil
}

// streamBytes is what the streams may take by their limits: queue and stories by the configuration, audit, dead letters
// and responses a GiB each.
func streamBytes(c *config.Config) int64 {
	const most = config.Size(1) << 60 // the sum must stay a number
	return int64(min(c.Bus.QueueMaxBytes, most) + min(c.Explain.MaxBytes, most) + 3*config.GiB)
}

// leastOwned is how many stored calls of a class a process runs at once where few slots are configured: others may have
// more, and what it owns waits for them without cost.
const leastOwned = 1024

func (h *Host) busConfig() bus.Config {
	b := h.Config.Bus
	c := bus.Config{
		Root: b.Root, Fusion: b.Fusion, MarkTTL: b.MarkTTL, HopPatience: b.HopPatience, MemberTimeout: b.MemberTimeout,
		AckWait: b.AckWait, MaxQueueWait: b.MaxQueueWait, QueueCapacity: h.Config.Tool.Executor.QueueCapacity,
		EntryMaxMsgs: b.QueueMaxMsgs, EntryMaxBytes: int64(b.QueueMaxBytes), ClaimCheck: int(b.ClaimCheck),
		ResultTTL: b.ResultTTL, Replicas: h.Config.NATS.Replicas, Verify: h.Config.NATS.Provision == "verify",
		ToolClasses: toolClasses(&h.Config),
		Running:     max(leastOwned, b.Slots.Model),
	}
	if own := h.Conn.Opts.InboxPrefix; own != "" || len(h.Config.NATS.InboxPrefixes) > 0 {
		c.InboxPrefixes = append([]string{"_INBOX.", "_INBOX_"}, h.Config.NATS.InboxPrefixes...)
		if own != "" {
			c.InboxPrefixes = append(c.InboxPrefixes, own+".")
		}
	}
	for _, p := range h.Models.Table.Providers() {
		c.ModelClasses = append(c.ModelClasses, p.Name)
	}
	return c
}

// toolClasses are the classes of tools: the executors, and the concurrency groups of the configuration.
func toolClasses(c *config.Config) []string {
	out := []string{"go", "http", "nats"}
	for _, s := range c.Tool.MCPServers {
		out = append(out, "mcp-"+s.Name)
	}
	for _, t := range c.Tool.Tools {
		if g := t.ConcurrencyGroup; g != "" && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// provision makes what is missing on the server and opens the stores by their short names.
func (h *Host) provision(ctx context.Context, js jetstream.JetStream) (map[string]pipeline.Store, error) {
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := bus.Provision(limit, js, h.busConfig()); err != nil {
		return nil, err
	}
	out := map[string]pipeline.Store{}
	for _, name := range buckets {
		b, err := jet.OpenBucket(limit, js, name)
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(name, bucketPrefix)] = b
	}
	var err error
	h.control, err = jet.OpenBucket(limit, js, jet.ControlBucket)
	return out, err
}

// inProcess stands for the address of an embedded server that listens nowhere.
const inProcess = "in-process"
