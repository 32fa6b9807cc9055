package bus

import (
	"sync"
	"sync/atomic"
	"time"
)

// nodeStats are the counters of this process: what it handled, redeliveries apart (contracts 6). The calls' own
// counters are in the Manager.
type nodeStats struct {
	late       atomic.Int64 // hops dropped because they were first read after their lease's time
	dead       atomic.Int64 // dead letters made
	handedBack atomic.Int64 // calls stored again because the process stops

	mu        sync.Mutex
	endpoints map[string]*endpointStats
	order     []string
}

type endpointStats struct {
	subject, group string
	requests       int
	errors         int
	redelivered    int
	took           time.Duration
	lastError      string
}

// endpoint registers an endpoint, before the node serves.
func (s *nodeStats) endpoint(name, subject, group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoints == nil {
		s.endpoints = map[string]*endpointStats{}
	}
	if s.endpoints[name] == nil {
		s.order = append(s.order, name)
		s.endpoints[name] = &endpointStats{subject: subject, group: group}
	}
}

// step counts one run of an endpoint.
func (s *nodeStats) step(name string, took time.Duration, err error, redelivered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[name]
	if e == nil {
		return
	}
	e.requests++
	e.took += took
	if redelivered {
		e.redelivered++
	}
	if err != nil {
		e.errors++
		e.lastError = err.Error()
	}
}
