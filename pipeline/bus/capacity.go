package bus

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// Capacity is how full one class of target work is, as this process sees it.
type Capacity struct {
	Kind  messages.Kind `json:"kind"`
	Class string        `json:"class"`
	// Waiting and Tenants are the calls of this process that are in line for the class, and whose they are; Away are those
	// that are offered to a worker or run at one. They are 0 where the process owns no calls of the class.
	Waiting int `json:"waiting"`
	Tenants int `json:"tenants"`
	Away    int `json:"away"`
	// Busy and Free are the slots of this process, Queued is what waits here for one; 0 where it does no such work. Slots
	// that classes share are free for each of them.
	Busy   int `json:"busy"`
	Free   int `json:"free"`
	Queued int `json:"queued"`
}

// Capacity tells how full the classes are that this process owns calls of or works for, by kind and class.
func (n *Node) Capacity() []Capacity {
	n.owner.Lock()
	loads := n.owns.Runs.Loads(nil)
	n.owner.Unlock()
	n.member.Lock()
	loads = n.member.m.Works.Loads(loads)
	n.member.Unlock()
	out := make([]Capacity, 0, len(loads))
	for _, l := range protocol.Sum(loads) {
		kind, class, _ := cutGroup(l.Class)
		out = append(out, Capacity{Kind: messages.Kind(kind), Class: class, Waiting: l.Waiting, Tenants: l.Tenants,
			Away: l.Away, Busy: l.Busy, Free: l.Free, Queued: l.Queued})
	}
	return out
}
