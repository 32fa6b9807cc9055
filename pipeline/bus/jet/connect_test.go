package jet_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// serve runs a plain nats-server with the given options on a free loopback port.
func serve(t *testing.T, o *server.Options) string {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", -1, true, true
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return s.Addr().String()
}

// certificate writes a self-signed certificate for 127.0.0.1 and returns its files.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shallot test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600))
	return certFile, keyFile
}

func TestConnect(t *testing.T) {
	t.Run("url with user and password", func(t *testing.T) {
		addr := serve(t, &server.Options{Username: "u", Password: "p"})
		nc, err := jet.Connect(jet.ConnOptions{URL: "nats://u:p@" + addr})
		require.NoError(t, err)
		nc.Close()
	})
	t.Run("a refused connection names the server and no password", func(t *testing.T) {
		addr := serve(t, &server.Options{Username: "u", Password: "p"})
		_, err := jet.Connect(jet.ConnOptions{URL: "nats://u:wrongpw@" + addr})
		require.ErrorContains(t, err, addr)
		require.NotContains(t, err.Error(), "wrongpw")
	})
	t.Run("NATS context by name", func(t *testing.T) {
		addr := serve(t, &server.Options{Username: "u", Password: "p"})
		home := t.TempDir()
		t.Setenv("XDG_CONFIG_HOME", home)
		require.NoError(t, os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700))
		file := filepath.Join(home, "nats", "context", "prod.json")
		saved := fmt.Appendf(nil, `{"url":"nats://%s","user":"u","password":"p","inbox_prefix":"_INBOX_me"}`, addr)
		require.NoError(t, os.WriteFile(file, saved, 0o600))
		nc, err := jet.Connect(jet.ConnOptions{Context: "prod"})
		require.NoError(t, err)
		require.Equal(t, "_INBOX_me", nc.Opts.InboxPrefix)
		nc.Close()
		_, err = jet.Connect(jet.ConnOptions{Context: "pord"})
		require.ErrorContains(t, err, "nats context ls")
	})
	t.Run("mutual TLS", func(t *testing.T) {
		cert, key := certificate(t)
		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		pool := x509.NewCertPool()
		raw, err := os.ReadFile(cert)
		require.NoError(t, err)
		pool.AppendCertsFromPEM(raw)
		addr := serve(t, &server.Options{TLS: true, TLSTimeout: 5, TLSVerify: true, TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
			MinVersion: tls.VersionTLS12,
		}})
		nc, err := jet.Connect(jet.ConnOptions{URL: "tls://" + addr, CA: cert, Cert: cert, Key: key})
		require.NoError(t, err)
		nc.Close()
		_, err = jet.Connect(jet.ConnOptions{URL: "tls://" + addr})
		require.Error(t, err, "an authority that nobody named is not trusted")
		_, err = jet.Connect(jet.ConnOptions{URL: "tls://" + addr, CA: key})
		require.ErrorContains(t, err, "no PEM certificate")
	})
}

func TestEmbeddedServer(t *testing.T) {
	t.Parallel()
	t.Run("a taken port names the flag", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		_, err = embed.Start(embed.Options{Dir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
		require.ErrorContains(t, err, "--nats-port")
	})
	t.Run("it listens on loopback only", func(t *testing.T) {
		t.Parallel()
		s, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1})
		require.NoError(t, err)
		defer s.Stop()
		require.True(t, s.Addr().(*net.TCPAddr).IP.IsLoopback())
	})
}
