package mcp

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What happens to a server when a call is given up, beside the cancellation that every server is told.
const (
	CancelNotify  = "notify"
	CancelRestart = "restart"
)

// errSpoiled ends a connection whose server may still be at work for calls that nobody waits for.
var errSpoiled = errors.New("a call was given up, and on-cancel is restart")

// link is one connection to a server. Its counts are guarded by the server's mutex.
type link struct {
	session *mcp.ClientSession
	using   int  // requests that run on it
	spoiled bool // a call was given up
}

// enter takes part in the current connection, and waits for one as long as ctx and the server's time allow. Who has
// entered leaves.
func (s *server) enter(ctx context.Context) (*link, error) {
	limit := time.NewTimer(s.Timeout)
	defer limit.Stop()
	for {
		s.mu.Lock()
		l, up, why := s.link, s.up, s.why
		if l != nil {
			l.using++
		}
		s.mu.Unlock()
		if l != nil {
			return l, nil
		}
		select {
		case <-up:
		case <-limit.C:
			return nil, why
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), why)
		}
	}
}

// leave ends what enter began. A program that may ignore its cancellation is started again where the operator says so,
// but only when nothing else runs on it: until then new calls go to it as before.
func (s *server) leave(l *link, givenUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.using--
	l.spoiled = l.spoiled || givenUp && s.OnCancel == CancelRestart
	if !l.spoiled || l.using > 0 || s.link != l {
		return
	}
	s.link, s.up, s.why = nil, make(chan struct{}), errSpoiled // whoever comes now waits for the new one
	s.spoiled <- l                                             // there is room: each link is given once, and is taken before the next
}
