package bus

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// makeOwner wires the half of the node that runs calls.
func (n *Node) makeOwner() {
	n.owns = protocol.NewOwner(n.opts.Name, n.protocolConfig())
	n.owner = &machine{clock: n.clock, beat: n.owns.Beat, carry: n.carry}
	n.replies = newReplies(n)
	n.calls.observer = n.opts.Observer
	n.onion = &onion{
		hops: &hops{owner: n.owner, asks: &n.owns.Asks, open: map[uint64]*owned{}, n: n, elsewhere: map[string]bool{},
			served: map[string]bool{}},
		targets: &targets{owner: n.owner, runs: &n.owns.Runs, n: n},
		hold:    n.holdCall, longDelay: n.cfg.LongDelay,
		doubt: n.doubt,
	}
}

// carry carries out what the owner's machine decided.
func (n *Node) carry(e *protocol.Effect) {
	switch e.Kind {
	case protocol.Ask:
		n.onion.hops.repeat(e)
	case protocol.Probe:
		n.publish(n.replies.root+".probe."+strconv.FormatInt(int64(e.At), 10), "", nil)
	case protocol.Ping:
		n.ping(e, n.replies.root)
	case protocol.Offer, protocol.WhoHas, protocol.Confirm, protocol.Cancel:
		n.onion.targets.send(e)
	case protocol.GetBegun, protocol.PutBegun, protocol.GetOutcome, protocol.SetBegun:
		stored := *e // e is only valid during the call
		n.tasks.Go(func() { n.ownerStore(stored) })
	case protocol.Expire:
		stored := *e
		n.tasks.Go(func() { n.expiry.letGo(stored) })
	case protocol.Wake:
		n.wake(e)
		n.durable.carry(*e)
	case protocol.DeadLetter:
		n.deadQuestion(e)
	default:
		n.durable.carry(*e)
	}
}

// wake tells the goroutine of a call, if there is one.
func (n *Node) wake(e *protocol.Effect) {
	if o := n.calls.get(e.Call); o != nil {
		o.mail.post(letter{why: e.Why, n: e.N, record: e.Record, ahead: int(e.Waiting), expected: e.At})
	}
}

// publish sends a message of control. What cannot be sent now is decided anew later, so an error is only news.
func (n *Node) publish(subject, reply string, data []byte) {
	n.send(&nats.Msg{Subject: subject, Reply: reply, Data: data})
}

func (n *Node) send(m *nats.Msg) {
	if err := n.nc.PublishMsg(m); err != nil {
		n.log.Debug("a message was not sent", "subject", m.Subject, "bytes", len(m.Data), "err", err)
	}
}

// ping asks a process whether it lives; the answer goes to one of the roots that this process hears. The server answers
// where the process does not listen.
func (n *Node) ping(e *protocol.Effect, root string) {
	n.publish(n.subj.Process(e.To, "ping"), root+".pong."+strconv.FormatInt(int64(e.At), 10)+"."+e.To, nil)
}

// ownerStore carries out an effect of the owner on begun records.
func (n *Node) ownerStore(e protocol.Effect) {
	o := n.calls.get(e.Call)
	if o == nil {
		return
	}
	st, payload := n.begun.do(n.loop, o.tenant, e, nil)
	if payload != nil {
		o.run.keep(e.N, payload)
	}
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return n.owns.Stored(now, e, st, out)
	})
}

// deadQuestion keeps a question that two members died of.
func (n *Node) deadQuestion(e *protocol.Effect) {
	o := n.calls.get(e.Call)
	if o == nil {
		return
	}
	n.owner.Lock()
	data := o.ask.data
	n.owner.Unlock()
	group := e.Group
	n.tasks.Go(func() { n.bury(group, data, "two members were lost while they alone had this question") })
}

// groupOf names the members of a stage, or of a class of targets, to the protocol.
func groupOf(kind messages.Kind, name string) string { return string(kind) + "." + name }

// cutGroup is the reverse of groupOf.
func cutGroup(group string) (kind, name string, ok bool) { return strings.Cut(group, ".") }
