package natsapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
)

// A request whose headers cannot be read is refused: it may have said that it must not run twice. One without a body is
// told what a body is, and one with headers that mean nothing here runs.
func TestAnOddMessageIsAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node(&natsapi.Options{}, func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(replied))
		return nil
	})
	conn, err := w.srv.InProcessConn()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	from := bufio.NewReader(conn)
	_, err = from.ReadString('\n') // INFO
	require.NoError(t, err)
	_, err = io.WriteString(conn, "CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB _INBOX.odd.* 1\r\n")
	require.NoError(t, err)
	n := 0
	for name, row := range map[string]struct{ head, body, says string }{
		"no version":             {"garbage\r\n\r\n", body, "the headers of the message cannot be read"},
		"no colon":               {"NATS/1.0\r\nnothing\r\n\r\n", body, "the headers of the message cannot be read"},
		"bytes that are no text": {"NATS/1.0\r\nShallot-Timeout: \xff\r\n\r\n", body, "visible ASCII characters"},
		"another header":         {"NATS/1.0\r\nX-Mine: 1\r\n\r\n", body, "done"},
		"no body":                {"NATS/1.0\r\n\r\n", "", "the body is empty"},
	} {
		n++
		_, err = fmt.Fprintf(conn, "HPUB %s _INBOX.odd.%d %d %d\r\n%s%s\r\n", model, n, len(row.head),
			len(row.head)+len(row.body), row.head, row.body)
		require.NoError(t, err)
		for _, want := range []string{fmt.Sprintf("HMSG _INBOX.odd.%d ", n), row.says} {
			for said := ""; !strings.Contains(said, want); {
				said, err = from.ReadString('\n')
				require.NoError(t, err, "%s: nothing says %s", name, want)
				if strings.HasPrefix(said, "PING") {
					_, err = io.WriteString(conn, "PONG\r\n")
					require.NoError(t, err)
				}
			}
		}
	}
}
