// Package embed runs a nats-server inside this process: for the one-command start and for tests. The same code paths
// serve a real server or a cluster; only the connection differs.
package embed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
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
	// Login says what a user with this password may do; false refuses them. nil lets everybody do everything: the server
	// listens on loopback. This process has a user of its own, see [Server.Own]. It may be called concurrently.
	Login func(user, password string) (Rights, bool)
	Log   *slog.Logger
}

// Server is a running embedded server.
type Server struct {
	*server.Server
	lock *os.File
	own  string // the password of this process
}

// Rights are the subjects that a user may publish and subscribe to, wildcards allowed. All lets them do everything.
type Rights struct {
	All                bool
	Publish, Subscribe []string
}

// Start starts a server and waits until it is ready. It listens on loopback only.
func Start(o Options) (*Server, error) {
	opts := &server.Options{
		ServerName: "shallot-embedded", Host: "127.0.0.1", Port: o.Port, JetStream: true, StoreDir: o.Dir,
		NoSigs: true, NoLog: true, MaxPayload: o.MaxPayload, PingInterval: 10 * time.Second, MaxPingsOut: 2,
		SyncInterval: o.Sync, SyncAlways: o.Sync == 0, JetStreamMaxMemory: -1, JetStreamMaxStore: -1,
	}
	if o.Port == 0 {
		opts.DontListen = true
	}
	if o.Port > 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(opts.Host, strconv.Itoa(o.Port)))
		if err != nil {
			return nil, fmt.Errorf("port %d for the embedded NATS server is taken; choose another with --nats-port, or use the "+
				"server that is there with --nats nats://127.0.0.1:%d: %w", o.Port, o.Port, err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("embedded NATS server: %w", err)
		}
	}
	own := rand.Text()
	if o.Login != nil {
		opts.CustomClientAuthentication = door{o.Login, own}
	}
	held, err := lock(o.Dir)
	if err != nil {
		return nil, err
	}
	inner, err := server.NewServer(opts)
	if err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	s := &Server{inner, held, own}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		s.Stop()
		return nil, errors.New("embedded NATS server: not ready within 20s; is its data directory " + o.Dir +
			" in use by another process?")
	}
	if !s.JetStreamEnabled() {
		s.Stop()
		return nil, errors.New("embedded NATS server: JetStream did not start; is its data directory " + o.Dir +
			" in use by another process, or not writable?")
	}
	return s, nil
}

// Locked reports whether no other process can have the directory.
func (s *Server) Locked() bool { return s.lock != nil }

// Shutdown shuts the server down and lets go of its directory.
func (s *Server) Shutdown() {
	s.Server.Shutdown()
	s.WaitForShutdown()
	_ = s.lock.Close() // nil where nothing is locked
}

// Stop shuts the server down and waits for it.
func (s *Server) Stop() { s.Shutdown() }
