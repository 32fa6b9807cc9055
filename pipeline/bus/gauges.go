package bus

import (
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
