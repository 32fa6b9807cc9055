// Package embed runs a nats-server inside this process: for the one-command start and for tests. The same code paths
// serve a real server or a cluster; only the connection differs.
package embed

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Options of an embedded server.
type Options struct {
	Dir  string // JetStream's own directory
	Port int    // on 127.0.0.1; -1 picks a free one, 0 listens nowhere
	// Sync is how often files are synced; 0 means always, so that a power cut loses nothing that was acknowledged.
	Sync       time.Duration
	MaxPayload int32 // 0 means the server's 1 MiB
	// Streams is how many bytes the streams with a limit may take together. The server makes no stream whose limit is
	// above three quarters of the free disk; with Streams it makes these on a small disk too, and the disk is the limit.
	Streams int64
	// Login says what a user with this password may do; false refuses them. nil lets everybody do everything: the server
	// listens on loopback. This process has a user of its own, see [Server.Own]. It may be called concurrently.
	Login func(user, password string) (Rights, bool)
	Log   *slog.Logger // nil: nothing is logged
}

// Server is a running embedded server. The methods of the server inside are those of the one that was started first:
// after a full disk another one has taken its place, at the same address.
type Server struct {
	*server.Server
	options Options
	lock    *os.File
	own     string // the password of this process
	port    int    // where it listens; 0: nowhere
	stuck   chan string
	full    atomic.Bool // it is stuck, and not yet replaced
	quit    chan struct{}
	stop    sync.Once
	work    sync.WaitGroup

	mu      sync.Mutex
	running *server.Server
}

// Rights are the subjects that a user may publish and subscribe to, wildcards allowed. All lets them do everything.
type Rights struct {
	All                bool
	Publish, Subscribe []string
}

// Start starts a server and waits until it is ready. It listens on loopback only.
func Start(o Options) (*Server, error) {
	if o.Port > 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(o.Port)))
		if err != nil {
			return nil, fmt.Errorf("port %d for the embedded NATS server is taken; choose another with --nats-port, or use the "+
				"server that is there with --nats nats://127.0.0.1:%d: %w", o.Port, o.Port, err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("embedded NATS server: %w", err)
		}
	}
	held, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Server{options: o, lock: held, own: rand.Text(), stuck: make(chan string, 1), quit: make(chan struct{})}
	if s.running, err = s.open(o.Port); err != nil {
		_ = held.Close()
		return nil, err
	}
	s.Server = s.running
	if a, ok := s.Addr().(*net.TCPAddr); ok {
		s.port = a.Port
	}
	s.work.Go(s.mend)
	return s, nil
}

const loopback = "127.0.0.1"

// open starts a server with as much room as the disk gives, or as the streams need by their limits.
func (s *Server) open(port int) (*server.Server, error) {
	inner, err := s.openWith(port, -1)
	if err != nil || inner.JetStreamConfig().MaxStore >= s.options.Streams {
		return inner, err
	}
	s.options.Log.Warn("the disk is smaller than what the streams may take; when it is full, nothing more is stored",
		"dir", s.options.Dir, "room", inner.JetStreamConfig().MaxStore, "streams", s.options.Streams)
	end(inner)
	return s.openWith(port, s.options.Streams)
}

// openWith starts a server that stores so many bytes; -1: three quarters of the free disk.
func (s *Server) openWith(port int, room int64) (*server.Server, error) {
	o := s.options
	opts := &server.Options{
		ServerName: "shallot-embedded", Host: loopback, Port: port, JetStream: true, StoreDir: o.Dir,
		NoSigs: true, NoLog: true, MaxPayload: o.MaxPayload, PingInterval: 10 * time.Second, MaxPingsOut: 2,
		SyncInterval: o.Sync, SyncAlways: o.Sync == 0, JetStreamMaxMemory: -1, JetStreamMaxStore: room,
		DontListen: port == 0,
	}
	if o.Login != nil {
		opts.CustomClientAuthentication = door{o.Login, s.own}
	}
	inner, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	inner.SetLoggerV2(ear{s}, false, false, false)
	inner.Start()
	if !inner.ReadyForConnections(20 * time.Second) {
		end(inner)
		return nil, errors.New("embedded NATS server: not ready within 20s; is its data directory " + o.Dir +
			" in use by another process?")
	}
	if !inner.JetStreamEnabled() {
		end(inner)
		return nil, errors.New("embedded NATS server: JetStream did not start; is its data directory " + o.Dir +
			" in use by another process, or not writable?")
	}
	return inner, nil
}

// Locked reports whether no other process can have the directory.
func (s *Server) Locked() bool { return s.lock != nil }

// Shutdown shuts the server down and lets go of its directory. It may be called twice.
func (s *Server) Shutdown() {
	s.stop.Do(func() { close(s.quit) })
	s.work.Wait()
	end(s.now())
	_ = s.lock.Close() // nil where nothing is locked
}

// Stop shuts the server down and waits for it.
func (s *Server) Stop() { s.Shutdown() }

func end(inner *server.Server) {
	inner.Shutdown()
	inner.WaitForShutdown()
}
