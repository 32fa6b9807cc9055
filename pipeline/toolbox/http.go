package toolbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

const maxResponse = 10 << 20

// HTTPExecutor runs tools that are HTTP endpoints: the arguments are POSTed as JSON, the answer's body is the result.
// Only the URL of the definition is ever called: a redirect within the same origin is followed (307 and 308), any other
// is refused, so that no answer can lead a call to another host or into a private network.
type HTTPExecutor struct {
	client *http.Client
}

var _ Executor = (*HTTPExecutor)(nil)

// NewHTTPExecutor returns an executor with its own connections; Close drops the idle ones.
func NewHTTPExecutor() *HTTPExecutor {
	return &HTTPExecutor{client: &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
			ForceAttemptHTTP2:   true,
		},
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			from := via[0].URL
			if len(via) > 3 || to.URL.Scheme != from.Scheme || to.URL.Host != from.Host || to.Method != via[0].Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}}
}

// Close drops idle connections.
func (e *HTTPExecutor) Close() { e.client.CloseIdleConnections() }

// Execute posts the arguments.
func (e *HTTPExecutor) Execute(ctx context.Context, inv Invocation) (Result, error) {
	name := inv.Tool.Name
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, inv.Tool.Executor.URL, bytes.NewReader(inv.Arguments))
	if err != nil {
		return Result{}, messages.NewFault(messages.Misconfigured, "tool '%s': its URL cannot be used: %v", name, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/plain;q=0.9, */*;q=0.1")
	for k, v := range headers(inv) {
		req.Header.Set(k, v)
	}
	for k, v := range inv.Tool.Executor.Headers {
		req.Header.Set(k, v)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return Result{}, e.network(ctx, name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	limit := inv.Tool.Executor.MaxResponse
	if limit <= 0 {
		limit = maxResponse
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return Result{}, e.network(ctx, name, err)
	}
	if int64(len(body)) > limit {
		return Result{}, messages.NewFault(messages.ToolError, "tool '%s' answered with more than %d bytes; raise max-response of its executor or make it answer less", name, limit)
	}
	switch {
	case resp.StatusCode/100 == 2:
		return Result{Content: body}, nil
	case resp.StatusCode/100 == 3:
		return Result{}, messages.NewFault(messages.ToolError, "tool '%s' answered %d, a redirect to another origin; it is not followed: configure the final URL", name, resp.StatusCode)
	}
	return outcome(name, resp.StatusCode, retryAfter(resp.Header.Get("Retry-After")), body, "")
}

// network reads a transport error without its URL, which may hold a secret.
func (e *HTTPExecutor) network(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := messages.NewFault(messages.ToolNetwork, "tool '%s' cannot be reached", name)
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		f.Message, f.Unsent = fmt.Sprintf("tool '%s': the name of its host cannot be resolved", name), true
	case errors.As(err, &op) && op.Op == "dial":
		f.Message, f.Unsent = fmt.Sprintf("tool '%s': no connection: %v", name, op.Err), true
	case errors.As(err, &op):
		f.Message = fmt.Sprintf("tool '%s': the connection broke: %v", name, op.Err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		f.Message = fmt.Sprintf("tool '%s': the connection closed before the answer was complete", name)
	}
	return f
}

// outcome maps a status that is no success. What the tool says in its own words about bad input or a missing thing is
// a result (IsError); what a gateway says about the way there is a fault.
func outcome(name string, status int, wait time.Duration, body []byte, text string) (Result, error) {
	said := strings.TrimSpace(text)
	if said == "" {
		said = short(string(body))
	}
	f := messages.NewFault(messages.ToolError, "tool '%s' answered %d: %s", name, status, said)
	f.RetryAfter = wait
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		f.Code, f.Unsent = messages.ToolNetwork, true // refused before work
	case status == http.StatusBadGateway:
		f.Code = messages.ToolNetwork
	case status == http.StatusGatewayTimeout || status == http.StatusRequestTimeout:
		f.Code = messages.ToolTimeout
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		f.Message = fmt.Sprintf("tool '%s' answered %d: it refuses our credentials; check the headers of its executor", name, status)
	case status/100 == 4 && len(bytes.TrimSpace(body)) > 0:
		return Result{Content: body, IsError: true, Metadata: map[string]any{"status": status}}, nil
	}
	return Result{}, f
}

func retryAfter(h string) time.Duration {
	if s, err := strconv.Atoi(h); err == nil && s > 0 && s < 24*3600 {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(h); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

func short(s string) string {
	r := []rune(strings.ToValidUTF8(strings.TrimSpace(s), "?"))
	if len(r) > 300 {
		return string(r[:297]) + "..."
	}
	return string(r)
}
