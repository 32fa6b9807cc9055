package bus

import (
	"context"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// Counters are what this process has counted since its start, and what it knows at the moment.
type Counters struct {
	Dead       int64 // dead letters that it wrote
	Late       int64 // questions that it read after their time
	HandedBack int64 // stored calls that it gave back because it stopped
	Refused    int64 // requests whose reply subject was not an inbox
	Parked     int64 // calls that are parked, of all processes; 0 without the entry role
}

// Counters reads the counters of this process. It asks nobody.
func (n *Node) Counters() Counters {
	n.durable.held.mu.Lock()
	held := len(n.durable.held.at)
	n.durable.held.mu.Unlock()
	return Counters{Dead: n.stats.dead.Load(), Late: n.stats.late.Load(), HandedBack: n.stats.handedBack.Load(),
		Refused: n.guard.refused.Load(), Parked: int64(held)}
}

// Asked counts the questions of this process's calls that have no answer yet, by <kind>/<stage>: what waits for the
// stage, and what it works on.
func (n *Node) Asked() map[string]int {
	out := map[string]int{}
	n.owner.Lock()
	defer n.owner.Unlock()
	for _, o := range n.onion.hops.open {
		t := strings.Split(o.ask.subject, ".") // ... hop.<kind>.<phase>.<stage>
		if len(t) < 3 {
			continue
		}
		if stage, ok := messages.Untoken(t[len(t)-1]); ok {
			out[t[len(t)-3]+"/"+stage]++
		}
	}
	return out
}

// QueueState is how full a queue of stored calls is.
type QueueState struct {
	Name           string
	Pending, Taken int64 // not pulled; pulled, and not ended
}

// Queues asks the server how full the queues of stored calls are. What it does not answer until ctx ends is left out.
func (n *Node) Queues(ctx context.Context) []QueueState {
	var out []QueueState
	for _, q := range n.queues(ctx) {
		out = append(out, QueueState{Name: q.Consumer, Pending: int64(q.Pending), Taken: int64(q.AckPending)})
	}
	return out
}
