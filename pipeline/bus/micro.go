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

// services show this process to the service protocol of NATS.
type services struct {
	opts      *Options
	root      string
	nc        *nats.Conn
	stats     *nodeStats
	subs      *subscriptions
	answering func(nats.MsgHandler) nats.MsgHandler
}

// name names what a process is: Options.Service, or the first two words of its connection's name. Its endpoints
// are the stages, phases and targets that it serves, and what callers may ask for.
func (s *services) name() string {
	words := strings.Fields(cmp.Or(s.opts.Service, s.nc.Opts.Name))
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
func (s *services) order(kind messages.Kind) string {
	var names []string
	for _, m := range s.opts.Manager.Stages(kind) {
		names = append(names, m.Name)
	}
	return strings.Join(names, ">")
}

// describe says in a line what the process does.
func (s *services) describe() string {
	var does []string
	if s.opts.Entry {
		does = append(does, "owns calls")
	}
	stages := 0
	for _, m := range s.opts.Manager.Stages("") {
		if s.opts.hosts(m.Stage) {
			stages++
		}
	}
	if stages > 0 {
		does = append(does, "serves "+strconv.Itoa(stages)+" stages")
	}
	for _, t := range s.opts.Targets {
		does = append(does, string(t.Kind)+"/"+t.Class)
	}
	if len(does) == 0 {
		does = append(does, "looks on")
	}
	return "interceptors for model and tool calls over NATS: " + strings.Join(does, ", ")
}

// Endpoint has the service protocol show a subject that this process serves beside its stages and targets. count is to
// be told of each request: how long it took, and the fault that it was answered with.
func (s *services) Endpoint(e micro.EndpointInfo) (count func(took time.Duration, fault error)) {
	s.stats.endpoint(e.Name, e)
	return func(took time.Duration, fault error) { s.stats.step(e.Name, took, fault) }
}

// serve answers the service protocol of NATS by hand: stages are served by subscriptions of our own, so
// nats.go/micro's own counters would stay at zero, and a second subscription on a stage's subject would take half its
// messages.
func (s *services) serve() error {
	id := nuid.Next()
	started := time.Now().UTC()
	name := s.name()
	about := map[string]string{"client": s.nc.Opts.Name, "root": s.root, "process": s.opts.Name,
		"entry": strconv.FormatBool(s.opts.Entry), "max_payload": strconv.FormatInt(s.nc.MaxPayload(), 10)}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		if order := s.order(kind); order != "" {
			about[string(kind)+"_stages"] = order
		}
	}
	maps.Copy(about, s.opts.Metadata)
	identity := micro.ServiceIdentity{Name: name, ID: id, Version: s.opts.Version, Metadata: about}
	answers := map[string]func() any{
		"PING": func() any { return micro.Ping{ServiceIdentity: identity, Type: micro.PingResponseType} },
		"INFO": func() any { return s.info(identity) },
		"STATS": func() any {
			return s.counts(identity, started)
		},
	}
	for verb, answer := range answers {
		subjects := []string{"$SRV." + verb}
		for _, one := range slices.Compact([]string{name, allServices}) {
			subjects = append(subjects, "$SRV."+verb+"."+one, "$SRV."+verb+"."+one+"."+id)
		}
		for _, subject := range subjects {
			if _, err := s.subs.hear(subject, s.answering(func(m *nats.Msg) {
				_ = m.Respond(rawjson.Encode(answer()))
			})); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *services) info(identity micro.ServiceIdentity) micro.Info {
	out := micro.Info{ServiceIdentity: identity, Type: micro.InfoResponseType,
		// Never null: a process of the entry role alone has no endpoints, and tools refuse the whole list for a null.
		Description: s.describe(), Endpoints: []micro.EndpointInfo{}}
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	for _, name := range s.stats.order {
		e := s.stats.endpoints[name]
		out.Endpoints = append(out.Endpoints, e.EndpointInfo)
	}
	return out
}

func (s *services) counts(identity micro.ServiceIdentity, started time.Time) micro.Stats {
	out := micro.Stats{ServiceIdentity: identity, Type: micro.StatsResponseType, Started: started,
		Endpoints: []*micro.EndpointStats{}}
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	for _, name := range s.stats.order {
		e := s.stats.endpoints[name]
		row := &micro.EndpointStats{
			Name: e.Name, Subject: e.Subject, QueueGroup: e.QueueGroup, NumRequests: e.requests, NumErrors: e.errors,
			LastError: e.lastError, ProcessingTime: e.took,
		}
		if e.requests > 0 {
			row.AverageProcessingTime = e.took / time.Duration(e.requests)
		}
		row.Data = json.RawMessage(`{"enabled":` + strconv.FormatBool(s.on(name)) + `}`)
		out.Endpoints = append(out.Endpoints, row)
	}
	return out
}

// on reports whether the stage behind an endpoint is on; targets always are.
func (s *services) on(name string) bool {
	t := strings.SplitN(name, ".", 3)
	if len(t) != 3 {
		return true
	}
	for _, m := range s.opts.Manager.Find(t[2]) {
		if string(m.Kind) == t[0] {
			return m.Enabled()
		}
	}
	return true
}

// endpointName fits the service protocol's names: letters, digits, - and _.
func endpointName(name string) string { return strings.ReplaceAll(name, ".", "-") }
