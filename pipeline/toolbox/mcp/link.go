package mcp

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What happens to a server when a call is abandoned, beside the cancellation that every server is sent.
const (
	CancelNotify  = "notify"
	CancelRestart = "restart"
)

// errSpoiled ends a connection whose server may still be working on abandoned calls.
var errSpoiled = errors.New("a call was abandoned, and on-cancel is restart")

// link is one connection to a server. The server's mutex guards its counts.
type link struct {
	session *mcp.ClientSession
	using   int  // requests that run on it
	spoiled bool // a call was abandoned
}

// enter joins the current connection, and waits for one as long as ctx allows. Each enter needs a leave.
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

// leave ends what enter began. A program that may ignore its cancellation is started again if the operator asked for
// that, but only when nothing else runs on it: until then new calls go to it as before.
func (s *server) leave(l *link, givenUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.using--
	l.spoiled = l.spoiled || givenUp && s.OnCancel == CancelRestart
	if !l.spoiled || l.using > 0 || s.link != l {
		return
	}
	s.link, s.up, s.why = nil, make(chan struct{}), errSpoiled // new calls wait for the next connection
	// This never blocks: each link is sent once, and is taken before the next.
	s.spoiled <- l
}
