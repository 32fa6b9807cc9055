package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// admin is the listener of worker.admin: probes, /metrics, profiles. It may be nil, which serves nothing.
type admin struct {
	server *httpapi.Server
	listen net.Listener
	log    *slog.Logger
	done   chan struct{} // closed when the listener has ended; nil before it serves
}

// listenAdmin binds the listener, before anything starts, so that a port in use is reported first.
func listenAdmin(c *config.Config, log *slog.Logger) (*admin, error) {
	addr := c.Worker.Admin
	if addr == "" {
		return nil, nil
	}
	var keys *httpapi.KeyStore
	var err error
	if file := c.HTTP.KeysFile; file != "" {
		if keys, err = httpapi.LoadKeys(file, os.Getenv(httpapi.PepperEnv)); err != nil {
			return nil, err
		}
	}
	srv, err := httpapi.New(httpapi.Config{Admin: addr, AdminKey: "worker.admin", Grace: time.Second},
		httpapi.Deps{Keys: keys, Log: log})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("worker.admin: %w; another process listens there, choose another address with --admin", err)
	}
	return &admin{server: srv, listen: l, log: log}, nil
}

// serve begins to answer for a process that runs.
func (a *admin) serve(h *host.Host) {
	if a == nil {
		return
	}
	a.server.Ready = h.Readiness.Checks
	if page := h.Telemetry.Page(); page != nil {
		a.server.Extra = append(a.server.Extra, httpapi.Surface{Pattern: "/metrics", Control: true, Handler: page})
	}
	if h.Config.Telemetry.Pprof {
		a.server.Extra = append(a.server.Extra, httpapi.Profiles())
	}
	a.done = make(chan struct{})
	a.log.Info("probes and metrics", "at", "http://"+a.listen.Addr().String())
	go func() {
		defer close(a.done)
		if err := a.server.ServeOn(a.listen, a.server.AdminHandler()); err != nil {
			a.log.Error("the listener of probes and metrics ended", "err", err)
		}
	}()
}

// retire makes readiness fail.
func (a *admin) retire() {
	if a != nil {
		a.server.Retire()
	}
}

// close ends the listener and waits for it.
func (a *admin) close() {
	if a == nil {
		return
	}
	if a.done == nil {
		_ = a.listen.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := a.server.Shutdown(ctx); err != nil {
		a.log.Debug("the listener of probes and metrics did not end", "err", err)
	}
	<-a.done
}
