package natsapi

import (
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func startServer(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", -1, true, true
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(s.Shutdown)
	require.True(t, s.ReadyForConnections(time.Minute))
	return s
}

// A caller is seen, and their leave, through whichever server they are connected to (EN-7).
func TestACallerOfAnotherServerIsSeen(t *testing.T) {
	t.Parallel()
	clustered := func(name string) *server.Options {
		return &server.Options{ServerName: name, Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1}}
	}
	for name, servers := range map[string]func(t *testing.T) (ours, theirs *server.Server){
		"of the cluster": func(t *testing.T) (ours, theirs *server.Server) {
			ours = startServer(t, clustered("a"))
			o := clustered("b")
			o.Routes = []*url.URL{{Scheme: "nats", Host: ours.ClusterAddr().String()}}
			return ours, startServer(t, o)
		},
		"a leaf node": func(t *testing.T) (ours, theirs *server.Server) {
			hub := &server.Options{ServerName: "hub", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: -1}}
			ours = startServer(t, hub)
			z, err := ours.Varz(nil)
			require.NoError(t, err)
			at := &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(z.LeafNode.Port))}
			return ours, startServer(t, &server.Options{ServerName: "leaf",
				LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{at}}}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := servers(t)
			conn := func(s *server.Server) *nats.Conn {
				nc, err := nats.Connect(s.ClientURL())
				require.NoError(t, err)
				t.Cleanup(nc.Close)
				return nc
			}
			we, they := conn(ours), conn(theirs)
			inbox := they.NewInbox()
			sub, err := they.SubscribeSync(inbox)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return reaches(we, sub) }, time.Minute,
				10*time.Millisecond)
			l, err := newLooks(we, 20*time.Millisecond)
			require.NoError(t, err)
			told, err := we.SubscribeSync(l.dest + "*")
			require.NoError(t, err)
			left := make(chan struct{})
			end := l.at(inbox, func() { close(left) })
			defer end()
			for range 40 { // twice as many as without a caller
				_, err := told.NextMsg(time.Minute)
				require.NoError(t, err)
			}
			select {
			case <-left:
				require.Fail(t, "the caller is there")
			default:
			}
			_, err = sub.NextMsg(time.Millisecond)
			require.ErrorIs(t, err, nats.ErrTimeout, "nothing is delivered")
			require.NoError(t, sub.Unsubscribe())
			select {
			case <-left:
			case <-time.After(time.Minute):
				require.Fail(t, "the leave is not noticed")
			}
		})
	}
}

// reaches reports whether a message from us comes to the subscription; the servers may not know each other yet.
func reaches(we *nats.Conn, sub *nats.Subscription) bool {
	if we.Publish(sub.Subject, nil) != nil || we.Flush() != nil {
		return false
	}
	_, err := sub.NextMsg(50 * time.Millisecond)
	for more := err; more == nil; {
		_, more = sub.NextMsg(50 * time.Millisecond)
	}
	return err == nil
}
