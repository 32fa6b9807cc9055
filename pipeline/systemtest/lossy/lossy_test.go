package lossy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

func TestEachMessageGoesItsOwnWay(t *testing.T) {
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	p, err := lossy.Start(srv.Addr().String(), func(m lossy.Message) lossy.Action {
		what, ok := strings.CutPrefix(m.Subject, "to.")
		if !m.ToServer {
			what, ok = strings.CutPrefix(m.Subject, "from.")
		}
		if !ok {
			return lossy.Action{}
		}
		return map[string]lossy.Action{"lost": {Lose: true}, "twice": {Repeat: 1}, "late": {Delay: 50 * time.Millisecond},
			"last": {Cut: true}}[what]
	})
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	far, err := nats.Connect(p.URL(), nats.ReconnectWait(time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(far.Close)
	near, err := nats.Connect("", nats.InProcessServer(srv))
	require.NoError(t, err)
	t.Cleanup(near.Close)
	cut := far.StatusChanged(nats.RECONNECTING)
	for direction, ends := range map[string][2]*nats.Conn{"to.": {far, near}, "from.": {near, far}} {
		got := make(chan *nats.Msg, 16)
		_, err := ends[1].ChanSubscribe(direction+"*", got)
		require.NoError(t, err)
		require.NoError(t, ends[1].Flush())
		for _, what := range []string{"lost", "late", "twice", "plain", "last"} {
			m := &nats.Msg{Subject: direction + what, Data: []byte("x\r\ny"), Header: nats.Header{"A": {"b"}}}
			if what == "plain" {
				m.Header = nil
			}
			require.NoError(t, ends[0].PublishMsg(m))
			err := ends[0].FlushTimeout(30 * time.Second)
			if what != "last" {
				require.NoError(t, err)
			}
			if what == "plain" { // the late one comes before the connection ends
				var subjects []string
				for range 4 {
					m := <-got
					require.Equal(t, "x\r\ny", string(m.Data))
					subjects = append(subjects, strings.TrimPrefix(m.Subject, direction))
				}
				require.Equal(t, []string{"twice", "twice", "plain", "late"}, subjects)
			}
			if what == "last" {
				require.Equal(t, direction+"last", (<-got).Subject)
				<-cut
			}
		}
		require.Eventually(t, far.IsConnected, 30*time.Second, time.Millisecond)
		require.NoError(t, far.FlushTimeout(30*time.Second))
	}
}
