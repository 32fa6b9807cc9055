package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// patient is a target that says when it begins and when its caller is gone, and answers when it is told.
type patient struct {
	begun, gone chan struct{}
	answer      chan struct{}
	first       string // a chunk before the wait
}

func newPatient(first string) *patient {
	return &patient{begun: make(chan struct{}), gone: make(chan struct{}), answer: make(chan struct{}), first: first}
}

func (p *patient) run(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	if p.first != "" {
		if err := emit([]byte(p.first)); err != nil {
			return err
		}
	}
	close(p.begun)
	select {
	case <-ctx.Done():
		close(p.gone)
		return ctx.Err()
	case <-p.answer:
		return ends(c)
	}
}

// post is a request with a body as it stands on the wire.
func post(path, version, body string) string {
	return fmt.Sprintf(
		"POST %s HTTP/%s\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path,
		version,
		len(body),
		body,
	)
}

func quick(c *Config, _ *Deps) { c.Probe, c.Heartbeat = time.Millisecond, 20*time.Millisecond }

// A client that has sent its request may close its sending side and is answered; only one that is gone is gone (EN-8).
func TestAHalfClosedClientIsAnswered(t *testing.T) {
	t.Parallel()
	const interim = "HTTP/1.1 100 Continue\r\n"
	const path = "/v1/chat/completions"
	plain, streamed := post(path, "1.1", apitest.GoodBody), post(path, "1.1", apitest.StreamBody)
	for name, tt := range map[string]struct{ request, first, sign, answer string }{
		"a chat":             {plain, "", interim, `{"done":true}`},
		"a stream":           {streamed, "", interim, "[DONE]"},
		"a stream that runs": {streamed, chunk("a", "null"), ": ping\n", "[DONE]"},
		"a second request":   {post(path, "1.1", "{}") + plain, "", interim, `{"done":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(tt.first)
			d := &apitest.Entry{Left: make(chan string, 1), Target: p.run}
			g := start(t, d, quick)
			c := dial(t, g)
			_, err := io.WriteString(c, tt.request)
			require.NoError(t, err)
			require.NoError(t, c.CloseWrite())
			r := bufio.NewReader(c)
			for seen := 0; seen < 2; { // the second shows that the first one's echo was no reset
				line, err := r.ReadString('\n')
				require.NoError(t, err, line)
				if line == tt.sign {
					seen++
				}
			}
			close(p.answer)
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			if tt.sign == interim {
				require.Equal(t, 1, strings.Count(string(rest), "HTTP/1.1 200 OK\r\n"), "%s", rest)
			}
			require.Contains(t, string(rest), tt.answer)
			require.Empty(t, d.Left)
		})
	}
}

// Nothing but the answer is sent to a client of HTTP/1.0, which knows no interim responses.
func TestAHalfClosedClientOfHTTP10GetsItsAnswerOnly(t *testing.T) {
	t.Parallel()
	p := newPatient("")
	g := start(t, &apitest.Entry{Target: p.run}, quick)
	c := dial(t, g)
	_, err := io.WriteString(c, post("/v1/chat/completions", "1.0", apitest.GoodBody))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	<-p.begun
	require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond))) // the time of five heartbeats
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	close(p.answer)
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(all), "HTTP/1.0 200 OK\r\n"), "%s", all)
	require.Contains(t, string(all), `{"done":true}`)
}

// A client that has closed its side and leaves later is noticed, whatever was answered until then, and so is one that
// leaves at once (EN-8).
func TestAClientThatIsGoneIsNoticed(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"before an answer": "", "within a stream": chunk("a", "null")} {
		for _, half := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, half-closed before: %t", name, half), func(t *testing.T) {
				t.Parallel()
				p := newPatient(first)
				d := &apitest.Entry{Left: make(chan string, 1), Target: p.run}
				g := start(t, d, quick)
				c := dial(t, g)
				_, err := io.WriteString(c, post("/v1/chat/completions", "1.1", apitest.StreamBody))
				require.NoError(t, err)
				<-p.begun
				if half {
					require.NoError(t, c.CloseWrite())
					_, err = http.ReadResponse(bufio.NewReader(c), nil) // a sign of life, or the head of the stream
					require.NoError(t, err)
				}
				require.NoError(t, c.Close())
				<-d.Left
				<-p.gone
			})
		}
	}
}
