package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(c *Config, _ *Deps){
		"by what waits for it":  func(c *Config, _ *Deps) { c.StreamBuffer = 256 << 10 },
		"by what waits for all": func(c *Config, _ *Deps) { c.StreamBuffer, c.StreamBuffers = 1<<40, 256<<10 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			big := `"` + strings.Repeat("x", 64<<10) + `"`
			ended := make(chan error, 1)
			d := &apitest.Entry{Left: make(chan string, 2),
				Target: func(ctx context.Context, _ *messages.Call, emit pipeline.Emit) error {
					for { // the target never waits for the reader: the queue is bounded and the connection goes
						if err := emit([]byte(big)); err != nil {
							ended <- err
							return err
						}
					}
				}}
			g := start(t, d, set)
			conn, err := net.Dial("tcp", g.Listener.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
				len(apitest.StreamBody), apitest.StreamBody)
			require.NoError(t, err)
			<-ended
			<-d.Left
			raw, _ := io.ReadAll(conn)
			require.NotContains(t, string(raw), "[DONE]")
			require.False(t, strings.HasSuffix(string(raw), "0\r\n\r\n"), "the connection is cut, not ended")
		})
	}
}

// Where much waits in all, those are dropped for whom more than their share waits, and nobody else (BU-5).
func TestOnlyReadersWithMoreThanTheirShareAreDropped(t *testing.T) {
	t.Parallel()
	all := &backlog{most: 100 << 10}
	queued := func() *queue { return &queue{max: 1 << 20, ready: make(chan struct{}, 1), all: all} }
	piece := [][]byte{make([]byte, 20<<10)}
	put := func(q *queue) bool { return q.put(piece, pipeline.Marks{}) }
	greedy, modest := queued(), queued()
	for range 4 {
		require.True(t, put(greedy), "there is room in all")
	}
	require.True(t, put(modest))
	require.True(t, put(modest), "it has less than its share")
	require.False(t, put(greedy))
	greedy.close()
	require.True(t, put(modest))
	chunks, _ := modest.take()
	require.EqualValues(t, cost(chunks), all.held.Load(), "what is being written counts")
	modest.written(chunks)
	require.Zero(t, all.held.Load())
	modest.close()
	last := queued()
	require.False(t, last.late(1<<20), "a reader that keeps up is not late")
	require.True(t, put(last))
	require.False(t, last.late(60<<10))
	require.EqualValues(t, cost(piece)+60<<10, all.held.Load())
	require.True(t, last.late(60<<10), "there is no room for its reply")
	last.close()
	require.Zero(t, all.held.Load())
}

// When too much waits for slow readers, a large reply waits in a file: its reader gets all of it, and nothing of it
// stays behind. Where no file can be made, it stays in memory, and the log says so.
func TestALargeReplyWaitsInAFileWhereMuchWaits(t *testing.T) {
	reply := `{"text":"` + strings.Repeat("x", 4*streamShare) + `"}`
	for name, row := range map[string]struct {
		held int64
		dir  string
		says string
	}{
		"there is room":        {dir: "nowhere"},
		"there is none":        {held: 64 << 20},
		"and no file either":   {held: 64 << 20, dir: "nowhere", says: "let the process write to its directory"},
		"the last of the room": {held: 64<<20 - int64(len(reply)), dir: "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", filepath.Join(dir, row.dir))
			g := start(t, &apitest.Entry{Target: apitest.Replies(reply)}, nil)
			g.s.backlog.held.Store(row.held)
			got := g.Chat(t, apitest.GoodBody)
			require.Equal(t, 200, got.StatusCode)
			require.Equal(t, reply, got.Body)
			require.Equal(t, "application/json", got.Header.Get("Content-Type"))
			require.EqualValues(t, len(reply), got.ContentLength)
			g.Close()
			require.Equal(t, row.held, g.s.backlog.held.Load())
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
			if row.says == "" {
				require.NotContains(t, g.log.String(), "WARN")
			} else {
				require.Contains(t, g.log.String(), row.says)
			}
		})
	}
}
