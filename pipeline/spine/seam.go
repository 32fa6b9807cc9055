package spine

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// owned is a call that this process runs through the onion. The call itself is the running goroutine's alone.
type owned struct {
	call *messages.Call
	// id and tenant are the call's, for those who must not read the call.
	id, tenant string
	// durable says that the call is stored: its end is stored before anybody hears it.
	durable bool
	// fresh says that no other owner can have offered the call's target work.
	fresh bool
	// waiter is who waits for the call in this process and follows its chunks; nil: nobody does.
	waiter *pending

	ctx    context.Context // ends at the call's deadline, or when its caller leaves
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	mail   mailbox
	ask    asked
	run    target
}

// outcome is how a run through the onion came to its end.
type outcome uint8

const (
	// ended: the call has its reply or its fault, and its slip is done.
	ended outcome = iota + 1
	// parked: the call's hold is stored; whoever decides goes on with it.
	parked
	// yielded: another owner runs the call; this process stores nothing and tells nobody.
	yielded
	// handedBack: this process leaves, and the call is in the queue again.
	handedBack
)

// durable is the half of a node that stores calls. What is bound to its caller's connection never comes here, but
// for its holds.
type durable interface {
	// start begins to take stored calls, stop ends that. Between the two the others are called, by many at once.
	start(ctx context.Context) error
	stop(ctx context.Context)
	// accept takes a new call that somebody may come back for: its slip is made, nothing of it is stored yet.
	accept(ctx context.Context, c *messages.Call, r pipeline.Request) (pipeline.Pending, error)
	// carry carries out an effect of the owner that is about stored calls, or wakes somebody who is no owned call.
	// It must not wait: it is called by whoever brought the event, without the owner's lock.
	carry(e protocol.Effect)
	// hold parks a call that a stage held and returns how that ended: parked, or yielded. An error says that it
	// cannot be stored; the call goes on as if the stage had failed with it.
	hold(o *owned, next pipeline.Next) (outcome, error)
	// cancel ends the wait of a stored call that its caller does not want any more.
	cancel(id string)
	// result and peek are those of [Node].
	result(ctx context.Context, tenant, id string) (*messages.Call, error)
	peek(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error)
}
