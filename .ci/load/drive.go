package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// scenario is how callers call.
type scenario struct {
	name    string
	about   string
	callers int
	size    int // of the body in bytes
	model   string
	session bool
	key     bool
	stream  bool
}

var cases = []scenario{
	{name: "bare", about: "plain calls", callers: 64, size: 2 << 10},
	{name: "session", about: "calls of sessions: more stages", callers: 64, size: 2 << 10, session: true},
	{name: "durable", about: "calls with an idempotency key", callers: 64, size: 2 << 10, key: true},
	{name: "durable session", about: "both", callers: 64, size: 2 << 10, key: true, session: true},
	{name: "one", about: "one caller", callers: 1, size: 2 << 10},
	{name: "slow", about: "an upstream of 60 ms", callers: 16, size: 2 << 10, model: "mock-slow"},
	{name: "one stream", about: "one caller, 40 chunks", callers: 1, size: 2 << 10, stream: true},
	{name: "streams", about: "40 chunks at once", callers: 64, size: 2 << 10, stream: true},
	{name: "256 KiB", about: "one caller, larger body", callers: 1, size: 256 << 10},
	{name: "2 MiB", about: "one caller, large body", callers: 1, size: 2 << 20},
}

func (s scenario) body() []byte {
	model := s.model
	if model == "" {
		model = "mock-fast"
	}
	stream := ""
	if s.stream {
		stream = `"stream":true,`
	}
	head := `{"model":"` + model + `",` + stream + `"messages":[{"role":"user","content":"`
	const tail = `"}]}`
	return []byte(head + strings.Repeat("x", max(s.size-len(head)-len(tail), 1)) + tail)
}

// ask makes one call and returns the time to its first chunk, or to its answer.
type ask func(ctx context.Context) (first time.Duration, err error)

// caller makes the function that all callers of a path share.
func caller(p *path, s scenario, callers int) (ask, func(), error) {
	body := s.body()
	if p.bus != "" {
		return onBus(p.bus, body)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
	return func(ctx context.Context) (time.Duration, error) {
		begin := time.Now()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		if s.session {
			r.Header.Set("Shallot-Session", rand.Text())
		}
		if s.key {
			r.Header.Set("Idempotency-Key", rand.Text())
		}
		a, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer func() { _ = a.Body.Close() }()
		if a.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(a.Body, 300))
			return 0, fmt.Errorf("status %d: %s", a.StatusCode, text)
		}
		if s.stream {
			return readStream(a.Body, begin)
		}
		n, err := io.Copy(io.Discard, a.Body)
		if err == nil && n < answerSize {
			err = fmt.Errorf("an answer of %d bytes", n)
		}
		return time.Since(begin), err
	}, client.CloseIdleConnections, nil
}

func readStream(r io.Reader, begin time.Time) (first time.Duration, err error) {
	in := bufio.NewScanner(r)
	n, done := 0, false
	for in.Scan() {
		switch line := in.Bytes(); {
		case bytes.HasPrefix(line, []byte("data: [DONE]")):
			done = true
		case bytes.HasPrefix(line, []byte("data: {")):
			if n++; n == 1 {
				first = time.Since(begin)
			}
		}
	}
	if err := in.Err(); err != nil {
		return 0, err
	}
	if !done || n < chunks/2 {
		return 0, fmt.Errorf("a stream of %d chunks, whole: %t", n, done)
	}
	return first, nil
}

func onBus(url string, body []byte) (ask, func(), error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	if int64(len(body)) > nc.MaxPayload() {
		nc.Close()
		return nil, nil, errTooLarge
	}
	return func(ctx context.Context) (time.Duration, error) {
		begin := time.Now()
		_, err := nc.RequestWithContext(ctx, echoTopic, body)
		return time.Since(begin), err
	}, nc.Close, nil
}

var errTooLarge = errors.New("the body does not fit into a message")

// round is one measurement of one path in one case.
type round struct {
	calls, failed int
	took          time.Duration
	cpu           time.Duration
	first         []time.Duration // sorted
	last          error           // failure
}

// drive runs callers in a closed loop; what was begun within the time is counted.
func drive(ctx context.Context, p *path, n int, during time.Duration, ask ask) round {
	var r round
	var mu sync.Mutex
	var wg sync.WaitGroup
	cpu, begin := p.cpu(), time.Now()
	for range n {
		wg.Go(func() {
			var first []time.Duration
			var failed int
			var last error
			for time.Since(begin) < during && ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, 30*time.Second)
				at, err := ask(one)
				cancel()
				if err != nil {
					failed, last = failed+1, err
					continue
				}
				first = append(first, at)
			}
			mu.Lock()
			defer mu.Unlock()
			r.first, r.failed = append(r.first, first...), r.failed+failed
			if last != nil {
				r.last = last
			}
		})
	}
	wg.Wait()
	r.took, r.cpu, r.calls = time.Since(begin), p.cpu()-cpu, len(r.first)
	slices.Sort(r.first)
	return r
}
