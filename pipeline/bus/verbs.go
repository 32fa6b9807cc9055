package bus

import (
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// decider takes decisions about calls that wait for an answer, and lists those.
type decider struct{ holds *holds }

// Answer is Decide without a name.
func (d decider) Answer(ctx context.Context, tenant, id string, answer json.RawMessage) error {
	_, err := d.Decide(ctx, tenant, id, answer, "")
	return err
}

// Decide gives a parked call its answer: it goes on with the phase that held it, which finds the answer in the note
// hold.answer. The first answer wins; a later one is the fault conflict, which says whose the first was and when. An
// answer that is refused is an error, and null is ErrHeld: in both cases the call waits on. An unknown call is
// not_found. An empty tenant means any.
func (d decider) Decide(ctx context.Context, tenant, id string, answer json.RawMessage, by string) (Parked, error) {
	return d.holds.decideCall(ctx, tenant, id, answer, by)
}

// DecideInOneWord is Decide that returns what was decided, in one word if the answer has one.
func (d decider) DecideInOneWord(ctx context.Context, tenant, id string, answer json.RawMessage, by string) (string,
	error) {
	p, err := d.Decide(ctx, tenant, id, answer, by)
	if err != nil || p.Decided == nil {
		return "", err
	}
	return p.Decided.what(), nil
}

// HeldCalls returns the calls of a tenant that wait for an answer, the oldest first; all tenants' if it is empty.
func (d decider) HeldCalls(ctx context.Context, tenant string) ([]Parked, error) {
	return d.holds.heldCalls(ctx, tenant)
}

// HeldCall returns one call that waits; of any tenant if that is empty. For one that is decided and has not ended yet
// it returns both the call and not_found.
func (d decider) HeldCall(ctx context.Context, tenant, id string) (Parked, error) {
	return d.holds.heldCall(ctx, tenant, id)
}

// HeldRows is HeldCalls with each call as JSON.
func (d decider) HeldRows(ctx context.Context, tenant string) ([]json.RawMessage, error) {
	list, err := d.HeldCalls(ctx, tenant)
	out := make([]json.RawMessage, len(list))
	for i, p := range list {
		out[i] = rawjson.Encode(p)
	}
	return out, err
}
