package bus

import "time"

// Stepped makes a node that has not started as if somebody had moved the machine's clock by d since the process began.
func (n *Node) Stepped(d time.Duration) {
	for _, c := range []*clock{&n.clock, &n.owner.clock, &n.member.clock, &n.begun.clock} {
		c.base -= d
	}
}
