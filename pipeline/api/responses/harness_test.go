package responses_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// calls knows the ends of calls, as the entry does: a call without an end runs, one with an error has that.
type calls struct {
	mu   sync.Mutex
	ends map[string]*messages.Call
	errs map[string]error
}

func (c *calls) Accept(context.Context, pipeline.Request) (pipeline.Pending, error) {
	return nil, errors.New("nothing is accepted here")
}

func (c *calls) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	c.mu.Lock()
	end, err := c.ends[id], c.errs[id]
	c.mu.Unlock()
	if end != nil && end.Tenant != tenant {
		return nil, messages.NewFault(messages.NotFound, "no call %s", id)
	}
	if end == nil && err == nil {
		<-ctx.Done()
	}
	return end, err
}

// end ends a call with a reply, or with a fault.
func (c *calls) end(o responses.Owner, id string, reply []byte, f *messages.Fault) {
	call := messages.NewCall(messages.Model, o.Tenant, []byte(`{}`))
	call.ID, call.Wire = id, messages.ResponsesWire
	if f != nil {
		call.Fail(f)
	} else {
		call.SetReply(reply)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[id] = call
	delete(c.errs, id)
}

func (c *calls) fails(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs[id] = err
}

var (
	ann   = responses.Owner{Tenant: "ta", Key: "a1"}
	other = responses.Owner{Tenant: "ta", Key: "a2"}
	bob   = responses.Owner{Tenant: "tb", Key: "a1"}
)

// shop is what two processes keep in one store.
type shop struct {
	t     *testing.T
	store *pipeline.Memory
	calls *calls
	*responses.Kept
	second *responses.Kept
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, store: &pipeline.Memory{}, calls: &calls{ends: map[string]*messages.Call{}, errs: map[string]error{}}}
	s.Kept, s.second = responses.New(s.store, s.calls), responses.New(s.store, s.calls)
	return s
}

func (s *shop) keys() []string {
	s.t.Helper()
	keys, err := s.store.Keys(s.t.Context(), "")
	require.NoError(s.t, err)
	return keys
}

// reply is a Response of a provider that says a text. Its item has an id that the text makes.
func reply(text string) []byte {
	return view.Of(messages.ResponsesWire).TextReply("of_"+text, "m1", text, 7)
}

// turn keeps a finished response to a request and returns its id.
func (s *shop) turn(o responses.Owner, body, text string) string {
	s.t.Helper()
	turn, err := s.Prepare(s.t.Context(), o, []byte(body))
	require.NoError(s.t, err)
	r := turn.Record(messages.NewID(), time.Now().Unix())
	r.Response = r.Shape(reply(text), true)
	require.NoError(s.t, s.Save(s.t.Context(), o, r, events.Replay(messages.ResponsesWire, nil, r.Response)))
	return r.ID
}

// begun is a response in the background whose call runs.
func (s *shop) begun(o responses.Owner, more string) *responses.Record {
	s.t.Helper()
	turn, err := s.Prepare(s.t.Context(), o, []byte(`{"model":"m1","input":"go","background":true`+more+`}`))
	require.NoError(s.t, err)
	r := turn.Record(messages.NewID(), time.Now().Unix())
	require.NoError(s.t, s.Begin(s.t.Context(), o, r))
	return r
}

func isFault(t *testing.T, err error, code messages.Code, param string) {
	t.Helper()
	f, ok := errors.AsType[*messages.Fault](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, f.Code, f.Message)
	require.Equal(t, param, f.Param)
}

func texts(body []byte) (out []string) {
	for _, item := range gjson.GetBytes(body, "input").Array() {
		out = append(out, item.Get("content.0.text").Str)
	}
	return out
}

// all reads the whole log of a stream, which has ended.
func (s *shop) all(k *responses.Kept, o responses.Owner, id string) (out [][]byte) {
	s.t.Helper()
	for n := 0; ; n++ {
		list, last, err := k.Events(s.t.Context(), o, id, n)
		require.NoError(s.t, err)
		if out = append(out, list...); last {
			return out
		}
	}
}

// desk knows what calls wait for.
type desk struct{ waits map[string]api.Approval }

func (d desk) Approval(_ context.Context, tenant, call string) (api.Approval, error) {
	a, ok := d.waits[call]
	if !ok || a.Tenant != tenant {
		return a, messages.NewFault(messages.NotFound, "no held call %s", call)
	}
	return a, nil
}

var held error = pipeline.ErrHeld
