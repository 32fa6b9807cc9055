package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// frozen is what the server sees of a process that was stopped: subscriptions that nobody reads, and marks that end.
type frozen struct {
	w    *world
	subs []*nats.Subscription
}

const frozenName = "host-frozen"

func (w *world) frozen(stage string) *frozen {
	w.t.Helper()
	nc, s, f := w.conn(), messages.Subjects{Root: "shallot"}, &frozen{w: w}
	for _, phase := range []messages.Phase{messages.Before, messages.After} {
		f.listen(nc, s.Hop(messages.Model, phase, stage), stage)
	}
	f.listen(nc, s.Work(messages.Model, "default"), "default")
	_, err := nc.SubscribeSync(s.Process(frozenName, "*"))
	require.NoError(w.t, err)
	require.NoError(w.t, nc.Flush())
	mark := rawjson.Encode(map[string]any{"groups": []string{"model." + stage, "model.default"}})
	for _, bucket := range []string{jet.MembersBucket, jet.OwnersBucket} {
		m := &nats.Msg{Subject: "$KV." + bucket + "." + frozenName, Data: mark}
		_, err := w.js.PublishMsg(w.t.Context(), m, jetstream.WithMsgTTL(time.Second))
		require.NoError(w.t, err)
	}
	return f
}

func (f *frozen) listen(nc *nats.Conn, subject, group string) {
	sub, err := nc.QueueSubscribeSync(subject, group)
	require.NoError(f.w.t, err)
	f.subs = append(f.subs, sub)
}

// got is how many questions and offers came.
func (f *frozen) got() (n int) {
	for _, sub := range f.subs {
		pending, _, err := sub.Pending()
		require.NoError(f.w.t, err)
		n += pending
	}
	return n
}

// unmarked waits until its marks have ended.
func (f *frozen) unmarked() {
	for _, bucket := range []string{jet.MembersBucket, jet.OwnersBucket} {
		kv, err := f.w.js.KeyValue(f.w.t.Context(), bucket)
		require.NoError(f.w.t, err)
		require.Eventually(f.w.t, func() bool {
			_, err := kv.Get(f.w.t.Context(), frozenName)
			return errors.Is(err, jetstream.ErrKeyNotFound)
		}, 30*time.Second, 20*time.Millisecond)
	}
}

// The server goes on to give a frozen process its share, also when its marks have ended. All calls end, and soon
// nothing is given to it any more.
func TestAFrozenProcessHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]bool{"while it has its marks": false, "when its marks have ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{})
			n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)),
				Manager: manager(t, through("a", 10))})
			f := w.frozen("a")
			if ended {
				f.unmarked()
			}
			for given := -1; given != 0; {
				before, all := f.got(), make([]pipeline.Pending, 12)
				for i := range all {
					all[i] = accept(t, n, chatRequest())
				}
				for _, p := range all {
					require.Nil(t, wait(t, p).Fault)
				}
				given = f.got() - before
			}
		})
	}
}
