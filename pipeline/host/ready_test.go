package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// becomes waits until a check of readiness is as wanted, and its reason has a part.
func becomes(t *testing.T, h *host.Host, name string, ok bool, part string) {
	t.Helper()
	var last api.Check
	require.Eventually(t, func() bool {
		for _, c := range h.Readiness.Checks(t.Context()) {
			if c.Name == name {
				last = c
			}
		}
		return last.OK == ok && strings.Contains(last.Reason, part)
	}, 30*time.Second, 20*time.Millisecond, "%s: %+v", name, &last)
}

// A process that may not publish or read what it needs is not ready, and says what the server refuses.
func TestReadinessNamesWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	deny := func(subject string) *server.SubjectPermission {
		return &server.SubjectPermission{Allow: []string{">"}, Deny: []string{subject}}
	}
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoLog: true, NoSigs: true, Users: []*server.User{
			{Username: "mute", Password: "p", Permissions: &server.Permissions{Publish: deny("shallot.v1.event.>")}},
			{Username: "deaf", Password: "p", Permissions: &server.Permissions{Subscribe: deny("shallot.v1.model.request")}},
		}})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(srv.Shutdown)
	require.True(t, srv.ReadyForConnections(20*time.Second))
	at := strings.TrimPrefix(srv.ClientURL(), "nats://")

	mute := started(t, "version: 1\nnats: {url: 'nats://mute:p@"+at+"'}\n")
	becomes(t, mute, "permissions", true, "")
	require.Nil(t, end(t, mute, pipeline.Request{Kind: messages.Model, Body: []byte(hello)}).Fault)
	becomes(t, mute, "permissions", false, `"shallot.v1.event.end.model`)
	deaf := started(t, "version: 1\nnats: {url: 'nats://deaf:p@"+at+"'}\n")
	becomes(t, deaf, "permissions", false, `"shallot.v1.model.request"`)
}

// A store that takes no write makes a process unready as long as that lasts.
func TestReadinessFailsWhileTheStoreTakesNothing(t *testing.T) {
	t.Parallel()
	h := started(t, "version: 1\n")
	becomes(t, h, "jetstream", true, "")
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), "KV_shallot_members")
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_shallot_members"))
	becomes(t, h, "jetstream", false, "the store does not take the mark of this process")
	_, err = js.CreateStream(t.Context(), s.CachedInfo().Config)
	require.NoError(t, err)
	becomes(t, h, "jetstream", true, "")
}
