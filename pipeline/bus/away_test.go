package bus_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// The NATS server dies while work runs, and comes back: work that ended meanwhile, and work that goes on, is heard of
// and not bought again, whoever owns the call (BU-2).
func TestWorkOutlivesNATS(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes twenty seconds")
	}
	t.Parallel()
	for _, away := range []time.Duration{3 * time.Second, 12 * time.Second} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			outlives(t, away)
		})
	}
}

func outlives(t *testing.T, away time.Duration) {
	srv := launchServer(t)
	x := newInstall(t, srv, srv.url, "stage", "target-a", "target-b")
	all := map[string]pipeline.Pending{}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		for how, stored := range map[string]bool{"bound": false, "stored": true} {
			for when, takes := range map[string]time.Duration{"meanwhile": away / 2, "after": away + 2*time.Second} {
				key := string(kind) + "-" + how + "-" + when
				all[key] = x.acceptFor(kind, key, takes, stored)
				x.buyer(key)
			}
		}
	}
	srv.proc.end(syscall.SIGKILL, 5*time.Second)
	<-time.After(away) // simulated: the outage
	srv.start()
	for key, p := range all {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		c, err := p.Wait(ctx, nil)
		cancel()
		require.NoError(t, err, key)
		require.Nil(t, c.Fault, key)
		require.Len(t, x.bought(key), 1, key)
	}
}

// acceptFor is accept for a call that may take long, and may be stored.
func (x *install) acceptFor(kind messages.Kind, key string, takes time.Duration, stored bool) pipeline.Pending {
	x.t.Helper()
	body := rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "key", key), "takes", takes.String())
	return accept(x.t, x.owner, pipeline.Request{Kind: kind, Tool: "t", Body: body, Keep: stored, MaxTime: 2 * time.Minute,
		Deadline: time.Now().Add(2 * time.Minute)})
}
