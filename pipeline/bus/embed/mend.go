package embed

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// InProcessConn implements nats.InProcessConnProvider: a connection to the server that runs now.
func (s *Server) InProcessConn() (net.Conn, error) { return s.now().InProcessConn() }

func (s *Server) now() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Stuck reports whether the server could not write, and refuses what is to be stored until it is started again.
func (s *Server) Stuck() bool { return s.full.Load() }

// ear hears what the server inside logs. It waits for one thing: that a stream could not be written, after which the
// server refuses all writes to that stream until it is started again, whatever becomes of the disk.
type ear struct{ s *Server }

// Errorf implements server.Logger.
func (e ear) Errorf(format string, values ...any) {
	if !strings.Contains(format, "Critical write error") {
		return
	}
	e.s.full.Store(true)
	select {
	case e.s.stuck <- fmt.Sprintf(format, values...):
	default: // one restart is enough for all streams
	}
}

// Fatalf implements server.Logger.
func (e ear) Fatalf(format string, values ...any) {
	e.s.options.Log.Error("embedded NATS server", "err", fmt.Sprintf(format, values...))
}

// Noticef implements server.Logger.
func (ear) Noticef(string, ...any) {}

// Warnf implements server.Logger.
func (ear) Warnf(string, ...any) {}

// Debugf implements server.Logger.
func (ear) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (ear) Tracef(string, ...any) {}

// The rhythm of mend: how often it looks for room, and how long it lets a new server run before the next one.
const (
	lookEvery   = time.Second
	restartRest = 10 * time.Second
)

// mend starts another server on the same directory when one is stuck and the disk has room again. Those who were
// connected connect again, as after any other outage.
func (s *Server) mend() {
	for {
		select {
		case why := <-s.stuck:
			s.options.Log.Error("the embedded NATS server cannot write to its data directory, and refuses what is to be "+
				"stored; it is started again when there is room", "dir", s.options.Dir, "err", why)
		case <-s.quit:
			return
		}
		for !s.room() || !s.replace() {
			if !s.rest(lookEvery) {
				return
			}
		}
		if !s.rest(restartRest) {
			return
		}
	}
}

// rest waits, and reports whether the server is still wanted.
func (s *Server) rest(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.quit:
		return false
	}
}

// enough is how much room there must be for another start.
const enough = 16 << 20

// room tries whether the disk takes that much.
func (s *Server) room() bool {
	f, err := os.CreateTemp(s.options.Dir, "room-*")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(f.Name()) }()
	block := make([]byte, 1<<20)
	for range enough / len(block) {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err == nil
}

// replace ends the server and starts another one at its address.
func (s *Server) replace() bool {
	end(s.now())
	select {
	case <-s.stuck: // said by the one that has ended
	default:
	}
	next, err := s.open(s.port)
	if err != nil {
		s.options.Log.Error("the embedded NATS server does not start again", "dir", s.options.Dir, "err", err)
		return false
	}
	s.mu.Lock()
	s.running = next
	s.full.Store(false)
	s.mu.Unlock()
	s.options.Log.Warn("the embedded NATS server was started again, since its disk has room", "dir", s.options.Dir)
	return true
}
