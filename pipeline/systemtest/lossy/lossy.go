// Package lossy is a TCP proxy between a NATS client and its server that understands their protocol. A test decides
// what becomes of each message, in each direction. The other side never sees a lost message, and the connection goes on
// as if nothing had happened, so an acknowledgement can be lost although what it acknowledges was stored. The package
// is for tests.
package lossy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// Message is a message on its way.
type Message struct {
	// ToServer is its direction.
	ToServer bool
	Subject  string
	Reply    string
	// Data is headers and body together.
	Data []byte
}

// Action says what becomes of a message. The zero value passes it on.
type Action struct {
	Lose   bool
	Repeat int           // how often it is passed on again
	Delay  time.Duration // it comes later than others that follow it
	Cut    bool          // the connection ends after it
}

// Proxy is a running proxy.
type Proxy struct {
	server string
	judge  func(m Message) Action
	l      net.Listener
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Start starts a proxy on a free port of 127.0.0.1, in front of the server at the address. It calls judge for each
// message, from many goroutines at once; messages of one connection and direction come in their order.
func Start(server string, judge func(m Message) Action) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("lossy: %w", err)
	}
	p := &Proxy{server: server, judge: judge, l: l, conns: map[net.Conn]struct{}{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.work.Go(p.accept)
	return p, nil
}

// URL is the address for clients.
func (p *Proxy) URL() string { return "nats://" + p.l.Addr().String() }

// Cut ends all connections. Clients may connect again.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Stop ends the proxy.
func (p *Proxy) Stop() {
	p.stop()
	_ = p.l.Close()
	p.Cut()
	p.work.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		if p.ctx.Err() != nil {
			p.Cut()
		}
		up, down := &side{to: server}, &side{to: client}
		p.work.Go(func() { p.pipe(client, up, true) })
		p.work.Go(func() { p.pipe(server, down, false) })
	}
}

// side is one end of a connection. Delayed messages are written to it by goroutines of their own.
type side struct {
	mu sync.Mutex
	to net.Conn
}

func (s *side) write(raw []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.to.Write(raw)
	return err
}

func (p *Proxy) pipe(from net.Conn, to *side, toServer bool) {
	defer func() {
		_ = from.Close()
		_ = to.to.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	}()
	r := bufio.NewReaderSize(from, 1<<16)
	for {
		raw, m, err := frame(r, toServer)
		if err != nil {
			return
		}
		if m == nil {
			if to.write(raw) != nil {
				return
			}
			continue
		}
		if !p.pass(to, raw, p.judge(*m)) {
			return
		}
	}
}

// pass does to a message what was decided, and reports whether the connection goes on.
func (p *Proxy) pass(to *side, raw []byte, a Action) bool {
	switch {
	case a.Lose:
	case a.Delay > 0:
		p.work.Go(func() {
			t := time.NewTimer(a.Delay)
			defer t.Stop()
			select {
			case <-t.C:
				_ = to.write(raw) // the connection may have ended meanwhile
			case <-p.ctx.Done():
			}
		})
	default:
		for range 1 + a.Repeat {
			if to.write(raw) != nil {
				return false
			}
		}
	}
	return !a.Cut
}

var errFrame = errors.New("lossy: this is not the NATS protocol")

// frame reads one line of the protocol, and the payload of a message. m is nil for anything but a message.
func frame(r *bufio.Reader, toServer bool) (raw []byte, m *Message, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, nil, err
	}
	f := bytes.Fields(line)
	if len(f) == 0 {
		return line, nil, nil
	}
	verb := string(bytes.ToUpper(f[0]))
	headers := verb == "HPUB" || verb == "HMSG"
	if verb != "PUB" && verb != "MSG" && !headers {
		return line, nil, nil
	}
	m = &Message{ToServer: toServer}
	args := f[1:]
	sizes := 1
	if headers {
		sizes = 2
	}
	if len(args) < 1+sizes {
		return nil, nil, errFrame
	}
	size, err := strconv.Atoi(string(args[len(args)-1]))
	if err != nil {
		return nil, nil, errFrame
	}
	m.Subject = string(args[0])
	args = args[1 : len(args)-sizes]
	if !toServer && len(args) > 0 {
		args = args[1:] // without the number of the subscription
	}
	if len(args) > 0 {
		m.Reply = string(args[0])
	}
	raw = append(line, make([]byte, size+2)...)
	if _, err := io.ReadFull(r, raw[len(line):]); err != nil {
		return nil, nil, err
	}
	m.Data = raw[len(line) : len(line)+size]
	return raw, m, nil
}
