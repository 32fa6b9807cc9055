package toolbox

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

const maxResponse = 10 << 20

// HTTPExecutor runs tools that are HTTP endpoints: it POSTs the arguments as JSON, and the answer's body is the result.
// Only the URL of the definition is ever called: a redirect within the same origin is followed (307 and 308) for
// idempotent tools. Any other is refused, so that no answer can lead a call to another host or into a private network.
//
// A tool that does not come from the operator's file reaches public addresses only, and the networks that Allow names.
// The address is checked when the connection is made, after the name was resolved, so that neither a name nor DNS
// rebinding leads inside. Such a tool does not use a proxy of the environment, which would hide the address.
type HTTPExecutor struct {
	// References resolves the values of the definition's headers. Set it before the first call.
	References tool.References

	client  *http.Client
	guarded *http.Client
}

var _ Executor = (*HTTPExecutor)(nil)

// NewHTTPExecutor returns an executor with its own connections. allow are the networks, beside the public internet,
// that tools of the API may reach.
func NewHTTPExecutor(allow ...netip.Prefix) *HTTPExecutor {
	open := &net.Dialer{Timeout: 10 * time.Second}
	guard := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		return mayDial(address, allow)
	}}
	return &HTTPExecutor{client: client(open, http.ProxyFromEnvironment), guarded: client(guard, nil)}
}

func client(d *net.Dialer, proxy func(*http.Request) (*url.URL, error)) *http.Client {
	return &http.Client{
		Transport: NewConnections(&http.Transport{
			Proxy:               proxy,
			DialContext:         d.DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
			ForceAttemptHTTP2:   true,
		}),
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			from := via[0].URL
			if !mayRepeat(to.Context()) || len(via) > 3 || to.Method != via[0].Method ||
				to.URL.Scheme != from.Scheme || to.URL.Host != from.Host {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

var errPrivate = errors.New("the address is not public")

// mayDial refuses an address that must not be connected to.
func mayDial(address string, allow []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q", errPrivate, address)
	}
	ip := at.Addr().Unmap().WithZone("")
	if Public(ip) || slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return nil
	}
	return errPrivate
}

// Close drops idle connections.
func (e *HTTPExecutor) Close() {
	e.client.CloseIdleConnections()
	e.guarded.CloseIdleConnections()
}

// Execute posts the arguments. Errors never contain the value of a header.
func (e *HTTPExecutor) Execute(ctx context.Context, inv Invocation) (Result, error) {
	own := make(http.Header, len(inv.Tool.Executor.Headers))
	for k, v := range inv.Tool.Executor.Headers {
		value, err := e.References.Resolve(v)
		if err != nil {
			f := messages.NewFault(messages.Misconfigured, "tool '%s': its header %s: %v", inv.Tool.Name, k, err)
			f.Unsent = true
			return Result{}, f
		}
		own.Set(k, value)
	}
	r, err := e.send(ctx, inv, own)
	if f := (*messages.Fault)(nil); errors.As(err, &f) {
		g := *f
		for _, values := range own {
			g.Message = hide(g.Message, values[0])
		}
		return r, &g
	}
	return r, err
}

// hide removes a header's value from a text, also the part that follows its scheme.
func hide(text, value string) string {
	_, token, _ := strings.Cut(value, " ")
	for _, secret := range []string{value, token} {
		if len(secret) >= 6 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

func (e *HTTPExecutor) send(ctx context.Context, inv Invocation, own http.Header) (Result, error) {
	name := inv.Tool.Name
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, inv.Tool.Executor.URL, bytes.NewReader(inv.Arguments))
	if err != nil {
		return Result{}, messages.NewFault(messages.Misconfigured, "tool '%s': its URL cannot be used: %v", name, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/plain;q=0.9, */*;q=0.1")
	if inv.Streams {
		req.Header.Set("Accept",
			"text/event-stream, application/x-ndjson;q=0.9, application/json;q=0.8, text/plain;q=0.8, */*;q=0.1")
	}
	for k, v := range headers(inv) {
		req.Header.Set(k, v)
	}
	maps.Copy(req.Header, own)
	if inv.Once {
		ctx = Once(ctx)
	}
	var connected atomic.Bool // until then nothing was sent, whatever goes wrong
	seen := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req = req.WithContext(httptrace.WithClientTrace(ctx, seen))
	c := e.client
	if inv.Tool.Source != tool.Operator {
		c = e.guarded
	}
	resp, err := c.Do(req)
	if err != nil {
		return Result{}, network(ctx, name, connected.Load(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	limit := inv.Tool.Executor.MaxResponse
	if limit <= 0 {
		limit = maxResponse
	}
	if read := streamOf(resp); read != nil {
		r, err := read(inv, limit, resp.Body)
		switch f := (*messages.Fault)(nil); {
		case errors.Is(err, chat.ErrTooLong):
			return Result{}, tooLong(name, limit)
		case err != nil && !errors.As(err, &f):
			return Result{}, network(ctx, name, true, err)
		}
		return r, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return Result{}, network(ctx, name, true, err)
	}
	if int64(len(body)) > limit {
		return Result{}, tooLong(name, limit)
	}
	switch {
	case resp.StatusCode/100 == 2:
		return contentOf(inv, resp.Header.Get("Content-Type"), body), nil
	}
	return outcome(inv.Tool, resp.StatusCode, retryAfter(resp.Header.Get("Retry-After")), body, "")
}

// contentOf makes a result of bytes with a content type: text as it is, anything else as base64 with its type.
func contentOf(inv Invocation, contentType string, body []byte) Result {
	mediaType, text := tool.MediaType(contentType)
	if text || len(body) == 0 {
		return Result{Content: body}
	}
	return Result{Content: tool.Binary(mediaType, body, inv.CallID), Metadata: map[string]any{tool.MetaBinary: mediaType}}
}

func tooLong(tool string, limit int64) *messages.Fault {
	return messages.NewFault(messages.ToolError, "tool '%s' answered with more than %d bytes; "+
		"raise max-response of its executor or make it answer less", tool, limit)
}

// network makes a fault of a transport error, without its URL, which may hold a secret. Unless there was a connection,
// nothing was sent.
func network(ctx context.Context, name string, connected bool, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := messages.NewFault(messages.ToolNetwork, "tool '%s' cannot be reached", name)
	f.Unsent = !connected
	var op *net.OpError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	isOp := errors.As(err, &op)
	switch {
	case errors.Is(err, errPrivate):
		f = messages.NewFault(messages.Misconfigured, "tool '%s': its URL leads to an address that is not public; "+
			"define the tool in the configuration file, or name the network in tool.api-networks", name)
		f.Unsent = !connected
	case errors.As(err, &dns):
		f.Message = fmt.Sprintf("tool '%s': the name of its host cannot be resolved", name)
	case errors.As(err, &cert):
		f.Message = fmt.Sprintf("tool '%s': the certificate of its host is not accepted: %v", name, cert.Err)
	case isOp && !connected:
		f.Message = fmt.Sprintf("tool '%s': no connection: %v", name, op.Err)
	case !connected:
	case isOp:
		f.Message = fmt.Sprintf("tool '%s': the connection broke: %v", name, op.Err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		f.Message = fmt.Sprintf("tool '%s': the connection closed before the answer was complete", name)
	default:
		f.Message = fmt.Sprintf("tool '%s': the answer is not readable as HTTP", name)
	}
	return f
}

// outcome maps a status other than success. What the tool itself says about bad input or a missing thing is a result
// (IsError); what a gateway says about the way there is a fault. Only the tool's definition says which status proves
// that nothing was done: a proxy can answer 429 and 503 in the middle of the work.
func outcome(d *tool.Definition, status int, wait time.Duration, body []byte, text string) (Result, error) {
	name := d.Name
	said := strings.TrimSpace(text)
	if said == "" {
		said = Short(string(body))
	}
	if said != "" {
		said = ": " + said
	}
	f := messages.NewFault(messages.ToolError, "tool '%s' answered %d%s", name, status, said)
	f.RetryAfter = wait
	switch {
	case slices.Contains(d.NotExecuted, status):
		f.Code, f.Unsent = messages.ToolNetwork, true
	case status/100 == 3:
		f.Message = fmt.Sprintf("tool '%s' answered %d, a redirect that is not followed; configure the final URL",
			name, status)
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == http.StatusBadGateway:
		f.Code = messages.ToolNetwork
	case status == http.StatusGatewayTimeout || status == http.StatusRequestTimeout:
		f.Code = messages.ToolTimeout
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		f.Message = fmt.Sprintf("tool '%s' answered %d: it refuses our credentials; check the headers of its executor",
			name, status)
	case status/100 == 4 && len(bytes.TrimSpace(body)) > 0:
		return Result{Content: body, IsError: true, Metadata: map[string]any{"status": status}}, nil
	}
	return Result{}, f
}

func retryAfter(h string) time.Duration {
	const maxWait = 24 * time.Hour
	if s, err := strconv.ParseUint(h, 10, 64); err == nil {
		return time.Duration(min(s, uint64(maxWait/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(h); err == nil {
		return min(max(0, time.Until(at)), maxWait)
	}
	return 0
}

// Short makes a text of another program fit for a message: valid UTF-8, at most 300 characters.
func Short(s string) string {
	return messages.Clip(strings.ToValidUTF8(strings.TrimSpace(s), "?"), 300)
}
