package model

import (
	"net"
	"net/http"
	"time"
)

// clients are the connections to one provider.
type clients struct {
	kept  Doer // keeps connections for later requests
	fresh Doer // a new connection for each; nil where the provider brings a client of its own
	pool  *http.Client
}

func newClients(p Provider, connect time.Duration) clients {
	if p.Client != nil {
		return clients{kept: p.Client}
	}
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: connect,
		ForceAttemptHTTP2: true, MaxIdleConns: 512, MaxIdleConnsPerHost: 256, IdleConnTimeout: 60 * time.Second,
		DisableCompression: true, // nothing is asked for; what comes zipped all the same is read by decoded
	}
	once := t.Clone()
	once.DisableKeepAlives = true
	pool := client(t)
	return clients{kept: pool, fresh: client(once), pool: pool}
}

func client(t *http.Transport) *http.Client {
	return &http.Client{
		Transport: t,
		// A redirect would send the body, and maybe the key, to somebody nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (c clients) close() {
	if c.pool != nil {
		c.pool.CloseIdleConnections()
	}
}
