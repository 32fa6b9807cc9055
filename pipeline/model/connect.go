package model

import (
	"net"
	"net/http"
	"time"
)

// clients are the connections to one provider.
type clients struct {
	kept  Doer // keeps connections for later requests
	fresh Doer // a new connection for each; nil if the provider has its own client
	pool  *http.Transport
	// plain and streamed are requests for chat completions.
	plain, streamed form
}

func newClients(p Provider, connect time.Duration) clients {
	c := clients{plain: formOf(p, false), streamed: formOf(p, true)}
	if p.Client != nil {
		c.kept = p.Client
		return c
	}
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: connect,
		ForceAttemptHTTP2: true, MaxIdleConns: 512, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
		DisableCompression: true, // we do not ask for compression; decoded reads replies that are compressed anyway
	}
	once := t.Clone()
	once.DisableKeepAlives = true
	c.kept, c.fresh, c.pool = sender{t}, sender{once}, t
	return c
}

// sender sends a request as it is. It follows no redirect: that would send the body, and maybe the key, to a host that
// is not configured.
type sender struct{ *http.Transport }

// Do implements Doer.
func (s sender) Do(r *http.Request) (*http.Response, error) { return s.RoundTrip(r) }

func (c clients) close() {
	if c.pool != nil {
		c.pool.CloseIdleConnections()
	}
}
