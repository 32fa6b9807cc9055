package bus

import (
	"context"
	"sync/atomic"

	"github.com/shallot-nats/shallot/messages"
)

// owned is a call that this process runs through the onion. The call itself is the running goroutine's alone.
type owned struct {
	call *messages.Call
	// id, tenant and parent are the call's, for those who must not read the call.
	id, tenant, parent string
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
	seen   sight
	// offered says that work which must not run twice was offered, and may have begun.
	offered atomic.Bool
}

// unsent reports whether the call's target was certainly not asked.
func (o *owned) unsent() bool { return o.fresh && o.call.Slip.Tries == 0 && o.run.class == "" }

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
