package tools_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// HI-12 with real processes: whole Shallot processes are killed while calls are parked, wait, are decided and go on.
// Each call is asked about until somebody decides, ends once, and its tool runs at most once; rejected ones never
// run.
func TestApprovalUnderKills(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	t.Parallel()
	const every = 6 // each six calls, but the last, have their kill
	kills := pace.Rounds(9)
	calls := every * (kills + 1)
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	dir := t.TempDir()
	effects, file := filepath.Join(dir, "effects"), filepath.Join(dir, "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`version: 1
texts: zh
nats: {url: "`+srv.ClientURL()+`"}
bus: {ack-wait: 1s}
tool:
  tools:
    - {name: once, executor: "nats:work.once", effect: write, timeout: 5s, approval: always}
`), 0o600))
	tool := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=tool", "SHALLOT_TEST_FILE=" + effects,
		"SHALLOT_TEST_NATS=" + srv.ClientURL()}}
	tool.start()
	t.Cleanup(tool.kill)
	all := []*process{}
	for range 2 {
		p := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=everything", "SHALLOT_TEST_FILE=" + file}}
		p.start()
		t.Cleanup(p.kill)
		all = append(all, p)
	}
	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	limit := time.Now().Add(5 * time.Minute)
	// request asks until somebody answers: the process that took it may be gone.
	request := func(subject, body, key string) *nats.Msg {
		for time.Now().Before(limit) {
			m := nats.NewMsg(subject)
			m.Data = []byte(body)
			if key != "" {
				m.Header.Set("Idempotency-Key", key)
			}
			out, err := nc.RequestMsg(m, 2*time.Second)
			if err == nil {
				return out
			}
			if !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, nats.ErrNoResponders) {
				break
			}
		}
		return nil
	}
	var next atomic.Int64
	ids, ends := make([]string, calls), make([]*nats.Msg, calls)
	begins, killed := make([]chan struct{}, kills), make([]chan struct{}, kills)
	for k := range kills {
		begins[k], killed[k] = make(chan struct{}), make(chan struct{})
	}
	// at is told of each moment of a call, the first of three is 0. The kills come at each in turn.
	at := func(i, moment int) {
		if k := i / every; i%every == every/2 && k < kills && k%3 == moment {
			close(begins[k])
		}
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < calls; i = int(next.Add(1)) - 1 {
				if part := i / every; part > 0 {
					<-killed[part-1]
				}
				at(i, 0)
				m := request("shallot.v1.tool.request.once", `{}`, fmt.Sprintf("call-%d", i))
				if m == nil {
					return
				}
				if ids[i] = m.Header.Get("Shallot-Call"); ids[i] == "" {
					t.Errorf("call %d was not accepted: %s", i, m.Data)
					return
				}
				at(i, 1)
				decision := []string{"approve", "reject"}[i%2]
				for time.Now().Before(limit) {
					m = request("shallot.v1.approval.answer", `{"call":"`+ids[i]+`","decision":"`+decision+`"}`, "")
					if m == nil || gjson.GetBytes(m.Data, "status").Str == "decided" ||
						m.Header.Get("Shallot-Fault") == string(messages.Conflict) {
						break
					}
				}
				at(i, 2)
				for time.Now().Before(limit) {
					m = request("shallot.v1.result."+ids[i], ``, "")
					if m == nil || m.Header.Get("Shallot-Status") == "" {
						break
					}
				}
				ends[i] = m
			}
		})
	}
	over := make(chan struct{})
	go func() { callers.Wait(); close(over) }()
	for k := range kills {
		select {
		case <-begins[k]:
		case <-over: // the call has failed
		}
		all[k%len(all)].kill()
		all[k%len(all)].start()
		close(killed[k])
	}
	<-over
	ran := effectsIn(t, effects)
	count, seen := map[string]int{}, map[string]bool{}
	for i, m := range ends {
		require.NotNil(t, m, "call %d did not end", i)
		require.False(t, seen[ids[i]])
		seen[ids[i]] = true
		fault := messages.Code(m.Header.Get("Shallot-Fault"))
		count[fmt.Sprint([]string{"approve", "reject"}[i%2], " ", fault)]++
		switch {
		case i%2 == 1:
			require.Equal(t, messages.Blocked, fault, "%s", m.Data)
			require.Zero(t, ran[ids[i]])
		case fault == messages.OutcomeUnknown:
			require.LessOrEqual(t, ran[ids[i]], 1)
		default:
			require.Equal(t, `{"ok":true}`, string(m.Data), "%v", m.Header)
			require.Equal(t, 1, ran[ids[i]])
		}
	}
	require.Equal(t, "[]", string(request("shallot.v1.approval.list", "", "").Data), "nothing waits any more")
	t.Logf("%d calls, %d kills: %v", calls, kills, count)
}
