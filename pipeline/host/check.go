package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages"
)

// CheckConfig says what [Start] would refuse in a configuration, in the same words, and touches no server: it builds
// stages, tools and routes as Start does, over stores in memory. Start begins with it, so that a start that is refused
// has written nothing.
func CheckConfig(ctx context.Context, o Options) error {
	o.Log = slog.New(slog.DiscardHandler)
	h := newHost(&o)
	defer h.release()
	var err error
	if h.Models, err = newModels(&h.Config, o.Getenv, h.Manager, o.Log); err != nil {
		return err
	}
	stores := map[string]pipeline.Store{}
	for _, bucket := range buckets {
		stores[strings.TrimPrefix(bucket, bucketPrefix)] = &pipeline.Memory{}
	}
	return h.build(ctx, o, stores)
}

func newHost(o *Options) *Host {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	return &Host{Config: o.Config.Config, Manager: &pipeline.Manager{}, log: o.Log, entry: &lateEntry{},
		audit: &audit{subjects: messages.Subjects{Root: o.Config.Bus.Root}, log: o.Log}}
}

// build makes everything that needs stores and no bus, and refuses what does not fit together.
func (h *Host) build(ctx context.Context, o Options, stores map[string]pipeline.Store) error {
	err := h.makeTools(ctx, o, stores)
	if h.Tools == nil {
		return o.Config.Place(err)
	}
	err = errors.Join(err, h.stages(o, stores))
	if err == nil {
		err = h.Tools.addStageTools(ctx)
	}
	err = errors.Join(err, h.makeAgents(o, stores))
	whole := err == nil
	err = errors.Join(err, h.Tools.check(o, h.MCP, whole))
	if whole {
		err = errors.Join(err, checkRoute(h.Manager, o.Config, h.log))
	}
	return o.Config.Place(err)
}

// release closes what building has opened.
func (h *Host) release() {
	if h.Models != nil {
		h.Models.Endpoint.Close()
	}
	if h.Tools != nil {
		h.Tools.http.Close()
	}
}

// check refuses tools of the configuration that name what there is not, and those whose own stages could not stand
// where they would. Without the whole of the stages, what is said of them is not judged. Tools that other processes
// have registered are judged when they are called.
func (t *Tools) check(o Options, m *MCP, whole bool) error {
	var faults []error
	groups := slotGroups(o.Config.Sections)
	for i, d := range o.Config.Tool.Tools {
		at := fmt.Sprintf("tool.tools[%d]", i)
		bad := func(key, format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s%s: tool %s: "+format, append([]any{at, key, d.Name}, args...)...))
		}
		own := pipeline.ToolStages{Mandatory: d.Stages.Mandatory, Optional: d.Stages.Optional}
		if err := t.manager.CheckToolStages(messages.Tool, own); whole && err != nil {
			bad(".stages", "%v", err)
		}
		if whole && !t.desk.Known(d.Approval) {
			bad(".approval", "%q is not a policy of agent.interceptor.approval; write always, none, or the name of one",
				d.Approval)
		}
		if name := cmp.Or(d.Executor.Name, d.Name); d.Executor.Kind == tool.ExecGo && t.lacksFunc(o, name) {
			bad(".executor", "the program has no Go function %q; it has: %s", name, strings.Join(t.funcNames(), ", "))
		}
		if g := d.ConcurrencyGroup; g != "" && len(groups) > 0 && groups[g] == 0 {
			known := slices.Sorted(maps.Keys(groups))
			bad(".concurrency-group", "agent.interceptor.concurrency.groups has no %q; it has: %s",
				g, strings.Join(known, ", "))
		}
		if d.Check != "" && !t.mayKnow(d.Check, m) {
			bad(".check", "there is no tool %q; a tool that a service offers is defined here too", d.Check)
		}
	}
	return errors.Join(faults...)
}

// lacksFunc reports whether this process runs Go functions and has not the one of that name.
func (t *Tools) lacksFunc(o Options, name string) bool {
	return o.Roles.Tool && o.Executors[tool.ExecGo] == nil && t.funcs[name] == nil
}

func (t *Tools) funcNames() []string {
	names := slices.Sorted(maps.Keys(t.funcs))
	return slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, stageFunc) })
}

// slotGroups are the groups of agent.interceptor.concurrency and their slots.
func slotGroups(sections map[string]any) map[string]int {
	if c, ok := sections["concurrency"].(*stages.ConcurrencyConfig); ok {
		return c.Groups
	}
	return nil
}

// mayKnow reports whether there is a tool of the name, or may be one later: the tools of MCP servers are found when
// those are connected.
func (t *Tools) mayKnow(tool string, m *MCP) bool {
	_, prefixes := m.Servers()
	return t.configured[tool] || t.find.serves(tool) ||
		slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(tool, p) })
}

// storeOf finds stores by name. A name that there is not has a store that always fails, so that a misspelled one cannot
// share another's keys.
func storeOf(stores map[string]pipeline.Store) func(name string) pipeline.Store {
	return func(name string) pipeline.Store {
		if s, ok := stores[name]; ok {
			return s
		}
		return noStore(name)
	}
}

type noStore string

func (n noStore) err() error { return fmt.Errorf("there is no store %q", string(n)) }

func (n noStore) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, n.err()
}

func (n noStore) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, n.err()
}

func (n noStore) Delete(context.Context, string) error { return n.err() }

func (n noStore) Keys(context.Context, string) ([]string, error) { return nil, n.err() }

// buckets are those that the process opens as stores, by their short names.
var buckets = []string{
	jet.CacheBucket, jet.RetryBucket, jet.TodoBucket, jet.ToolsBucket, jet.RunsBucket, jet.ApprovalsBucket,
	jet.LimitsBucket, jet.ResponsesBucket,
}

const bucketPrefix = "shallot_"
