// Package jet is what Shallot needs of NATS without knowing a call: connections, KV buckets and object stores as
// pipeline.Store sees them, and the layout of streams on the server.
package jet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline/files"
)

// maxFile bounds a context and a file of certificates, in bytes.
const maxFile = 4 << 20

// ConnOptions say where the NATS server is and who we are. URL, Context and InProcess exclude each other.
type ConnOptions struct {
	Name      string // shown by "nats server report connections"
	URL       string
	Context   string // the name of a NATS context, or the path of its file
	Creds     string // a credentials file
	CA        string // PEM files for TLS
	Cert, Key string
	InProcess nats.InProcessConnProvider
	// User and Password are for InProcess; other servers have them in their URL or context.
	User, Password string
	// Direct is for connections of owners and members: nothing is buffered while the server is away, since what cannot
	// be sent now is decided anew later, and a dead server is noticed within 4 seconds.
	Direct bool
	Log    *slog.Logger
}

// natsContext is the part of a NATS context file that is used here; the nats CLI writes it.
type natsContext struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	InboxPrefix string `json:"inbox_prefix"`
}

// said is an error with another text.
type said struct {
	text string
	error
}

// Error implements error.
func (s said) Error() string { return s.text }

// Unwrap returns what the client said.
func (s said) Unwrap() error { return s.error }

// Said is an error of the client with the words that an operator understands: without a connection the client speaks of
// its buffers.
func Said(err error) error {
	for _, away := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrConnectionClosed} {
		if errors.Is(err, away) {
			return said{"there is no connection to NATS", err}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return said{"NATS does not answer in time", err}
	}
	return err
}

// Connect connects and keeps connected: it tries again for ever once it was connected, and fails at once if it never
// was. The caller closes the connection.
func Connect(o ConnOptions) (*nats.Conn, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	opts := []nats.Option{
		nats.Name(o.Name), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, time.Second),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.ReconnectBufSize(16 << 20),
		nats.Timeout(5 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn("disconnected from NATS; it is tried again until it is back", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Log.Info("connected to NATS again", "url", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
			subject, level := "", slog.LevelError
			if sub != nil {
				subject = sub.Subject
			}
			if !nc.IsConnected() { // that is said already; every watch and pull says it again and again
				level = slog.LevelDebug
			}
			o.Log.Log(context.Background(), level, "NATS reports", "subject", subject, "err", err)
		}),
	}
	if o.Direct {
		opts = append(opts, nats.ReconnectBufSize(-1), nats.PingInterval(2*time.Second))
	}
	url := o.URL
	if o.Context != "" {
		c, err := loadContext(o.Context)
		if err != nil {
			return nil, err
		}
		url, opts = c.URL, append(opts, c.options()...)
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.CA != "" || o.Cert != "" {
		t, err := tlsConfig(o.CA, o.Cert, o.Key)
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(t))
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess), nats.UserInfo(o.User, o.Password))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w; is nats-server running there, and are the credentials right?",
			redact(url), err)
	}
	return nc, nil
}

// ConnectWithin is Connect for a server that may not be there yet: it tries until the time is over or ctx ends, but not
// where the server refuses us, for waiting would not help.
func ConnectWithin(ctx context.Context, o ConnOptions, wait time.Duration) (*nats.Conn, error) {
	until := time.Now().Add(wait)
	for said := false; ; said = true {
		nc, err := Connect(o)
		if err == nil || errors.Is(err, nats.ErrAuthorization) || !time.Now().Before(until) {
			return nc, err
		}
		if !said && o.Log != nil {
			o.Log.Warn("NATS is not there yet; it is waited for", "for", wait, "err", err)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func (c natsContext) options() []nats.Option {
	var opts []nats.Option
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		opts = append(opts, nats.Token(c.Token))
	}
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(expand(c.Creds)))
	}
	if c.NKey != "" {
		if o, err := nats.NkeyOptionFromSeed(expand(c.NKey)); err == nil {
			opts = append(opts, o)
		}
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(expand(c.CA)))
	}
	if c.Cert != "" {
		opts = append(opts, nats.ClientCert(expand(c.Cert), expand(c.Key)))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	return opts
}

// loadContext reads a NATS context as the nats CLI keeps it.
func loadContext(name string) (natsContext, error) {
	path := name
	if !strings.ContainsRune(name, filepath.Separator) {
		home := os.Getenv("XDG_CONFIG_HOME")
		if home == "" {
			dir, err := os.UserHomeDir()
			if err != nil {
				return natsContext{}, fmt.Errorf("nats context %q: %w", name, err)
			}
			home = filepath.Join(dir, ".config")
		}
		path = filepath.Join(home, "nats", "context", name+".json")
	}
	raw, err := files.Read(path, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return natsContext{}, fmt.Errorf("nats context %q: no file %s; \"nats context ls\" shows the known ones", name, path)
	}
	if err != nil {
		return natsContext{}, fmt.Errorf("nats context %q: %w", name, err)
	}
	var c natsContext
	if err := json.Unmarshal(raw, &c); err != nil {
		return natsContext{}, fmt.Errorf("nats context %q: %s: %w", name, path, err)
	}
	if c.URL == "" {
		c.URL = nats.DefaultURL
	}
	return c, nil
}

func expand(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

func tlsConfig(ca, cert, key string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := files.Read(ca, maxFile)
		if err != nil {
			return nil, fmt.Errorf("TLS authority: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("TLS authority: %s holds no PEM certificate", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("TLS certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// redact takes user and password out of a URL list.
func redact(urls string) string {
	if urls == "" {
		return nats.DefaultURL
	}
	parts := strings.Split(urls, ",")
	for i, u := range parts {
		if at := strings.LastIndexByte(u, '@'); at >= 0 {
			scheme := ""
			if j := strings.Index(u, "://"); j >= 0 {
				scheme = u[:j+3]
			}
			parts[i] = scheme + "***@" + u[at+1:]
		}
	}
	return strings.Join(parts, ",")
}
