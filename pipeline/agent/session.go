package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// A session is a list of entries, one for each run that ended in it, with the messages of that run. An entry is created
// at the next free number and never changed, so that the runs of a session never tear each other's messages apart, and
// what a run has read stays the beginning of all its model calls.

type sessionEntry struct {
	Run      string            `json:"run"`
	Messages []json.RawMessage `json:"messages"`
}

func sessionKey(tenant, session, agent string, n int) string {
	return messages.Key("session", tenant, session, agent, strconv.Itoa(n))
}

// History returns the messages of the first n runs of a session with an agent, and how many runs there are; n below 0
// means all.
func (l Log) History(ctx context.Context, tenant, session, agent string, n int) (
	out []json.RawMessage, runs int, err error) {
	for ; n < 0 || runs < n; runs++ {
		e, err := l.entry(ctx, sessionKey(tenant, session, agent, runs))
		if errors.Is(err, pipeline.ErrNotFound) {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("session: %w", err)
		}
		out = append(out, e.Messages...)
	}
	return out, runs, nil
}

func (l Log) entry(ctx context.Context, key string) (e sessionEntry, err error) {
	got, err := l.Store.Get(ctx, key)
	if err == nil {
		err = json.Unmarshal(got.Value, &e)
	}
	return e, err
}

// Remember adds the messages of a run that has ended to its session. from is how many runs the session had when this
// one began. It may be done again: the run's messages are there once.
func (l Log) Remember(ctx context.Context, tenant, session, agent, run string, from int, msgs []json.RawMessage) error {
	raw := rawjson.Encode(sessionEntry{run, msgs})
	if len(raw) > pieceSize && len(msgs) > 2 { // what was asked and what was answered, without the steps between
		raw = rawjson.Encode(sessionEntry{run, []json.RawMessage{msgs[0], msgs[len(msgs)-1]}})
	}
	for n := from; ; n++ {
		key := sessionKey(tenant, session, agent, n)
		_, err := l.Store.Put(ctx, key, raw, l.keep(), pipeline.IfAbsent())
		if !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) {
			return err
		}
		if e, err := l.entry(ctx, key); err != nil || e.Run == run {
			return err
		}
	}
}

// bringsHistory reports whether the caller's messages are a conversation of their own, as clients send it that keep it
// themselves. Then the session's is not put in front.
func bringsHistory(msgs []json.RawMessage) bool {
	for _, m := range msgs {
		if (chat.Msg{Raw: m}).Role() == "assistant" {
			return true
		}
	}
	return false
}

// newMessages are those of a run that its session does not have yet: from the newest word of the user on.
func (s *State) newMessages() []json.RawMessage {
	given := s.Start.Messages
	at := 0
	if bringsHistory(given) {
		views := make([]chat.Msg, len(given))
		for i, m := range given {
			views[i] = chat.Msg{Raw: m}
		}
		at = max(chat.NewestUser(views), 0)
	}
	return s.Messages[min(at, len(s.Messages)):]
}

// thread counts the tool calls of a session.
type thread struct {
	Counts Counts `json:"counts"`
	// Runs are the last batches of runs: a batch is counted once, however often it is asked for.
	Runs map[string]batch `json:"runs,omitempty"`
}

type batch struct {
	Step   int    `json:"step"`
	Before Counts `json:"before"`
}

// maxThreadRuns bounds the runs that a thread remembers.
const maxThreadRuns = 256

// Reserve counts the tool calls of step in a run against the limits of its session, and returns the counts before. The
// calls of a session's runs are counted one batch after the other.
func (l Log) Reserve(ctx context.Context, tenant, session, run string, step int, names []string, limits ToolLimits,
	spent Counts) (before Counts, err error) {
	key := messages.Key("thread", tenant, session)
	_, err = pipeline.Change(ctx, l.Store, key, l.keep(), func(t *thread) (bool, error) {
		if b, ok := t.Runs[run]; ok && b.Step == step {
			before = b.Before
			return false, nil
		}
		before = clone(t.Counts)
		t.Counts = clone(before)
		for i, over := range limits.Admit(names, spent, before) {
			if over == "" && names[i] != "" {
				t.Counts[names[i]]++
			}
		}
		if t.Runs == nil || len(t.Runs) >= maxThreadRuns {
			t.Runs = map[string]batch{}
		}
		t.Runs[run] = batch{step, before}
		return true, nil
	})
	return before, err
}
