package agent

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// Question is what a suspended run asks.
type Question struct {
	Run   string `json:"run"`
	Agent string `json:"agent"`
	Step  int    `json:"step"`
	Asked
	// Decided holds the decisions that were made so far.
	Decided map[string]approval.Decision `json:"decided,omitempty"`
}

// Ruling is the answer to a Question: the decision about each call that waited.
type Ruling struct {
	Run       string                       `json:"run"`
	Step      int                          `json:"step"`
	Decisions map[string]approval.Decision `json:"decisions"`
}

func (r Ruling) about(run string, step int) bool { return r.Run == run && r.Step == step }

// Check holds a decision about one call to what was asked, and completes it with who decided and when. ok is false
// where nothing is decided. The error is a fault.
type Check func(ctx context.Context, question, answer json.RawMessage, by string) (json.RawMessage, error)

// TakeAnswer takes an answer to the question of a run. If each call is decided now it returns the ruling. If some are
// not, it returns the question with the decisions so far, which stays, and the ids that are open. The error is a fault,
// and nothing was decided then. warn lists ids that mean no call of the batch.
func TakeAnswer(ctx context.Context, question, answer json.RawMessage, by string, check Check) (
	ruling, partly json.RawMessage, open, warn []string, err error) {
	var q Question
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, nil, nil, nil, messages.NewFault(messages.Internal,
			"the question of the run cannot be read: %v", err).From("approval")
	}
	if q.Waits != "" {
		return nil, nil, nil, nil, messages.NewFault(messages.InvalidRequest,
			"the run waits for %s, which a stage holds; decide about that call", q.Waits).From("approval")
	}
	made, open, warn, err := q.Decide(q.Decided, answer, func(c AskedCall, raw json.RawMessage) (
		d approval.Decision, ok bool, err error) {
		out, err := check(ctx, rawjson.Encode(c.Question), raw, by)
		if err != nil || rawjson.IsNull(out) {
			return d, false, err
		}
		return d, true, json.Unmarshal(out, &d)
	})
	if err != nil {
		return nil, nil, nil, nil, messages.AsFault(err, "approval")
	}
	if len(open) == 0 {
		return rawjson.Encode(Ruling{q.Run, q.Step, made}), nil, nil, warn, nil
	}
	if len(made) > len(q.Decided) {
		q.Decided = made
		partly = rawjson.Encode(q)
	}
	return nil, partly, open, warn, nil
}

// StillOpen says which calls of a batch wait on.
func StillOpen(open []string) string {
	return "the run waits on: no decision yet about " + strings.Join(open, ", ")
}
