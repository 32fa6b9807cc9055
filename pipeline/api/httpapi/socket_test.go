package httpapi

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func dial(t *testing.T, g *testGateway) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", g.Server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c.(*net.TCPConn)
}

// A request whose end two readers could see at different places is refused, or answered and nothing is read after it
// (SE-9).
func TestNothingIsReadAfterAnAmbiguousRequest(t *testing.T) {
	t.Parallel()
	body := apitest.GoodBody
	size := func(n int) string { return "Content-Length: " + itoa(n) + "\r\n" }
	const chunked = "Transfer-Encoding: chunked\r\n"
	chunks := sixteen(len(body)) + "\r\n" + body + "\r\n0\r\n\r\n"
	smuggled := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
		size(len(body)) + "\r\n" + body
	for name, request := range map[string]string{
		"length and coding":   size(5) + chunked + "\r\n" + chunks,
		"coding and length":   chunked + size(len(chunks)) + "\r\n" + chunks,
		"length 0 and coding": size(0) + chunked + "\r\n" + chunks, "coding alone": chunked + "\r\n" + chunks,
		"two lengths": size(len(body)) + size(5) + "\r\n" + body, "two codings": chunked + chunked + "\r\n" + chunks,
		"another coding":       "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks,
		"identity":             "Transfer-Encoding: identity\r\n" + size(5) + "\r\n" + body,
		"a coding in disguise": "Transfer-Encoding: xchunked\r\n" + size(len(body)) + "\r\n" + body,
		"a length with a sign": "Content-Length: +" + itoa(len(body)) + "\r\n\r\n" + body,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &apitest.Entry{}
			g := start(t, d, nil)
			c := dial(t, g)
			_, err := io.WriteString(c,
				"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+request+smuggled)
			require.NoError(t, err)
			r := bufio.NewReader(c)
			res, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			_, err = io.ReadAll(res.Body)
			require.NoError(t, err)
			require.True(t, res.Close, "%s", res.Status)
			rest, _ := io.ReadAll(r) // an end, or a reset because the rest was not read
			require.Empty(t, string(rest))
			require.LessOrEqual(t, len(d.Seen), 1)
		})
	}
}

func itoa(n int) string    { return strconv.Itoa(n) }
func sixteen(n int) string { return strconv.FormatInt(int64(n), 16) }
