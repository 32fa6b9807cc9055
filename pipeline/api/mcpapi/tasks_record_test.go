package mcpapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func TestTaskView(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	x := &task{id: "x", ttl: time.Hour, written: made.Add(30 * time.Minute),
		taskRecord: taskRecord{Created: made, Changed: made.Add(time.Minute)}}
	v := x.view(statusWorking)
	require.Equal(t, []any{"2026-11-21T12:00:00.000Z", "2026-11-21T12:01:00.000Z"}, []any{v.CreatedAt, v.LastUpdatedAt})
	require.EqualValues(t, 90*60*1000, v.TTLMs, "from when it was made until the record goes")
	x.ended = made.Add(10 * time.Minute)
	v = x.view(statusCompleted)
	require.Equal(t, "2026-11-21T12:10:00.000Z", v.LastUpdatedAt)
	require.EqualValues(t, 70*60*1000, v.TTLMs, "the result goes before the record")
	require.Equal(t, []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second},
		[]time.Duration{pollEvery(0), pollEvery(10 * time.Second), pollEvery(time.Hour)})
}

// stillTasks has one store, and calls that never end.
type stillTasks struct{ pipeline.Memory }

func (*stillTasks) Peek(context.Context, string, string) (*messages.Call, time.Time, error) {
	return nil, time.Time{}, nil
}
func (*stillTasks) Cancel(string)             {}
func (s *stillTasks) Results() pipeline.Store { return &s.Memory }
func (*stillTasks) ResultTTL() time.Duration  { return time.Hour }

// The record of a task that is under way is written anew before it goes; the handle's time to live grows with it.
func TestMCPTaskRecordIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		still := &stillTasks{}
		f := &Server{Options: Options{Tasks: still, Local: api.Identity{Tenant: "default"}, Log: apitest.Log(t)}}
		made, err := f.newTask(t.Context(), &mcp.CallToolRequest{}, pipeline.Request{Tenant: "default"}, toolDef("x", "go"),
			"call")
		require.NoError(t, err)
		ask := func() *taskView {
			res, err := f.getTask(t.Context(), nil, &taskParams{TaskID: rawjson.Encode(made.id)})
			require.NoError(t, err)
			return res.(*taskView)
		}
		written := func() uint64 {
			e, err := still.Get(t.Context(), taskKey("default", made.id))
			require.NoError(t, err)
			return e.Revision
		}
		require.Equal(t, time.Hour.Milliseconds(), ask().TTLMs)
		<-time.After(20 * time.Minute)
		require.Equal(t, time.Hour.Milliseconds(), ask().TTLMs)
		require.EqualValues(t, 1, written())
		<-time.After(20 * time.Minute)
		require.Equal(t, (100 * time.Minute).Milliseconds(), ask().TTLMs)
		require.EqualValues(t, 2, written())
	})
}

// brokenTasks is a registry whose store of tasks does not answer.
type brokenTasks struct {
	*fakeTools
	stillTasks
}

func (*brokenTasks) Results() pipeline.Store { return refusingStore{} }

type refusingStore struct{ pipeline.Store }

func (refusingStore) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, errors.New("no answer")
}

func (refusingStore) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errors.New("no answer")
}

// No handle goes out that is not stored: the caller gets the result instead. And a task that cannot be read is no
// unknown one.
func TestMCPTaskWithoutStore(t *testing.T) {
	t.Parallel()
	d := toolDef("slow", "go")
	d.Task = tool.TaskAlways
	entry := &apitest.Entry{Target: apitest.Replies(`{"ok":true}`)}
	c := apitest.TaskClient{URL: serveSource(t, entry, &brokenTasks{fakeTools: &fakeTools{defs: []*tool.Definition{d}}},
		nil).URL}
	r := c.Call(t, "slow", `{}`)
	require.Equal(t, "complete", r.Get("resultType").Str, r.Raw)
	require.True(t, r.Get("structuredContent.ok").Bool())
	require.True(t, entry.Last(t).Keep)
	for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
		a := c.Do(t, method, `{"taskId":"x","inputResponses":{}}`)
		require.EqualValues(t, -32603, a.Get("error.code").Int(), a.Raw)
		require.True(t, a.Get("error.data.shallot/retryable").Bool(), a.Raw)
	}
}
