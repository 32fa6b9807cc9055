package bus

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// allServices is what all processes of an installation answer to, beside the names of their own.
const allServices = "shallot"

// serviceName names what a process is: Options.Service, or the first two words of its connection's name. Its endpoints
// are the stages, phases and targets that it serves, and what callers may ask for.
func (n *Node) serviceName() string {
	words := strings.Fields(cmp.Or(n.opts.Service, n.nc.Opts.Name))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, strings.Join(words[:min(len(words), 2)], "-"))
	if !strings.HasPrefix(name, allServices) {
		return allServices
	}
	return name
}

// order is the chain of a kind, the outermost stage first.
func (n *Node) order(kind messages.Kind) string {
	var names []string
	for _, s := range n.opts.Manager.Stages(kind) {
		names = append(names, s.Name)
	}
	return strings.Join(names, ">")
}

// describe says in a line what the process does.
func (n *Node) describe() string {
	var does []string
	if n.opts.Entry {
		does = append(does, "owns calls")
	}
	stages := 0
	for _, s := range n.opts.Manager.Stages("") {
		if n.opts.hosts(s.Stage) {
			stages++
		}
	}
	if stages > 0 {
		does = append(does, "serves "+strconv.Itoa(stages)+" stages")
	}
	for _, t := range n.opts.Targets {
		does = append(does, string(t.Kind)+"/"+t.Class)
	}
	if len(does) == 0 {
		does = append(does, "looks on")
	}
	return "interceptors for model and tool calls over NATS: " + strings.Join(does, ", ")
}

// Endpoint has the service protocol show a subject that this process serves beside its stages and targets. count is to
// be told of each request: how long it took, and the fault that it was answered with.
func (n *Node) Endpoint(e micro.EndpointInfo) (count func(took time.Duration, fault error)) {
	n.stats.endpoint(e.Name, e)
	return func(took time.Duration, fault error) { n.stats.step(e.Name, took, fault) }
}

// serveMicro answers the service protocol of NATS by hand: stages are served by subscriptions of our own, so
// nats.go/micro's own counters would stay at zero, and a second subscription on a stage's subject would take half its
// messages.
func (n *Node) serveMicro() error {
	id := nuid.Next()
	started := time.Now().UTC()
	name := n.serviceName()
	about := map[string]string{"client": n.nc.Opts.Name, "root": n.cfg.Root, "process": n.opts.Name,
		"entry": strconv.FormatBool(n.opts.Entry), "max_payload": strconv.FormatInt(n.nc.MaxPayload(), 10)}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		if order := n.order(kind); order != "" {
			about[string(kind)+"_stages"] = order
		}
	}
	maps.Copy(about, n.opts.Metadata)
	identity := micro.ServiceIdentity{Name: name, ID: id, Version: n.opts.Version, Metadata: about}
	answers := map[string]func() any{
		"PING": func() any { return micro.Ping{ServiceIdentity: identity, Type: micro.PingResponseType} },
		"INFO": func() any { return n.microInfo(identity) },
		"STATS": func() any {
			return n.microStats(identity, started)
		},
	}
	for verb, answer := range answers {
		subjects := []string{"$SRV." + verb}
		for _, one := range slices.Compact([]string{name, allServices}) {
			subjects = append(subjects, "$SRV."+verb+"."+one, "$SRV."+verb+"."+one+"."+id)
		}
		for _, subject := range subjects {
			if _, err := n.subs.hear(subject, n.Answering(func(m *nats.Msg) {
				_ = m.Respond(rawjson.Encode(answer()))
			})); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Node) microInfo(identity micro.ServiceIdentity) micro.Info {
	info := micro.Info{ServiceIdentity: identity, Type: micro.InfoResponseType,
		// Never null: a process of the entry role alone has no endpoints, and tools refuse the whole list for a null.
		Description: n.describe(), Endpoints: []micro.EndpointInfo{}}
	n.stats.mu.Lock()
	defer n.stats.mu.Unlock()
	for _, name := range n.stats.order {
		e := n.stats.endpoints[name]
		info.Endpoints = append(info.Endpoints, e.EndpointInfo)
	}
	return info
}

func (n *Node) microStats(identity micro.ServiceIdentity, started time.Time) micro.Stats {
	s := micro.Stats{ServiceIdentity: identity, Type: micro.StatsResponseType, Started: started,
		Endpoints: []*micro.EndpointStats{}}
	n.stats.mu.Lock()
	defer n.stats.mu.Unlock()
	for _, name := range n.stats.order {
		e := n.stats.endpoints[name]
		row := &micro.EndpointStats{
			Name: e.Name, Subject: e.Subject, QueueGroup: e.QueueGroup, NumRequests: e.requests, NumErrors: e.errors,
			LastError: e.lastError, ProcessingTime: e.took,
		}
		if e.requests > 0 {
			row.AverageProcessingTime = e.took / time.Duration(e.requests)
		}
		row.Data = json.RawMessage(`{"enabled":` + strconv.FormatBool(n.endpointOn(name)) + `}`)
		s.Endpoints = append(s.Endpoints, row)
	}
	return s
}

// endpointOn reports whether the stage behind an endpoint is on; targets always are.
func (n *Node) endpointOn(name string) bool {
	t := strings.SplitN(name, ".", 3)
	if len(t) != 3 {
		return true
	}
	for _, s := range n.opts.Manager.Find(t[2]) {
		if string(s.Kind) == t[0] {
			return s.Enabled()
		}
	}
	return true
}

// endpointName fits the service protocol's names: letters, digits, - and _.
func endpointName(name string) string { return strings.ReplaceAll(name, ".", "-") }
