package bus

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// nodeStats are the counters of this process: what it handled. The calls' own counters are in the Manager.
type nodeStats struct {
	late       atomic.Int64 // questions dropped because they were first read after their time
	dead       atomic.Int64 // dead letters made
	handedBack atomic.Int64 // calls given back because the process stops

	mu        sync.Mutex
	endpoints map[string]*endpointStats
	order     []string
}

type endpointStats struct {
	micro.EndpointInfo
	requests, errors int
	took             time.Duration
	lastError        string
}

// endpoint registers an endpoint under a name. For who lists endpoints its name is as the service protocol wants it.
func (s *nodeStats) endpoint(name string, e micro.EndpointInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoints == nil {
		s.endpoints = map[string]*endpointStats{}
	}
	if s.endpoints[name] == nil {
		s.order = append(s.order, name)
		slices.Sort(s.order)
		e.Name = endpointName(name)
		s.endpoints[name] = &endpointStats{EndpointInfo: e}
	}
}

// step counts one run of an endpoint. It reports false for one that is not registered.
func (s *nodeStats) step(name string, took time.Duration, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[name]
	if e == nil {
		return false
	}
	e.requests++
	e.took += took
	if err != nil {
		e.errors++
		e.lastError = err.Error()
	}
	return true
}

// phaseEndpoint is a phase of a stage for who lists endpoints.
func phaseEndpoint(subj messages.Subjects, s pipeline.Stage, phase messages.Phase) micro.EndpointInfo {
	return micro.EndpointInfo{Subject: subj.Hop(s.Kind, phase, s.Name), QueueGroup: s.Name, Metadata: map[string]string{
		"kind": string(s.Kind), "stage": s.Name, "phase": string(phase), "order": strconv.Itoa(s.Order)}}
}

// stepHere counts a phase that the owner of a call ran itself. A process that does not serve the stage has an endpoint
// for it from then on, so that the counts of an installation add up.
func (s *nodeStats) stepHere(subj messages.Subjects, st pipeline.Stage, r pipeline.Report) {
	name := endpointOf(st.Kind, r.Phase, st.Name)
	if s.step(name, r.Took, r.Err) {
		return
	}
	e := phaseEndpoint(subj, st, r.Phase)
	e.Metadata["served"] = "false" // questions go to others
	s.endpoint(name, e)
	s.step(name, r.Took, r.Err)
}

// endpointOf names the endpoint of a stage's phase.
func endpointOf(kind messages.Kind, phase messages.Phase, stage string) string {
	return string(kind) + "." + string(phase) + "." + stage
}

// logReport logs a phase that failed; one that refused the call did not.
func logReport(log *slog.Logger, c *messages.Call, r pipeline.Report) {
	if r.Err == nil {
		return
	}
	said := []any{"call", c.ID, "stage", r.Stage, "phase", r.Phase, "attempt", r.Attempt, "err", r.Err}
	if f, ok := errors.AsType[*messages.Fault](r.Err); ok && f.HTTPStatus() < 500 {
		log.Debug("stage refused", said...) // it did what it is for; the line of the call says how it ended
		return
	}
	if len(r.Stack) > 0 {
		said = append(said, "stack", r.Stack)
	}
	log.Warn("stage failed", said...)
}
