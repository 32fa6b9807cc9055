package bus

import (
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// who asks the other owners who has a call, and answers them.
type who struct {
	nc      *nats.Conn
	decide  decide
	own     string
	subject string // where all owners hear
	reply   string // where the answers come to this process
	log     *slog.Logger
	// owners counts them, with this one. bound cancels a call that runs here and is not stored.
	owners func() int
	bound  func(tenant, call string) bool

	mu      sync.Mutex
	askers  map[string]string // where they hear answers, by name
	last    uint64
	cancels map[uint64]chan bool // who waits for answers to cancelAsk
}

// owns is the question which owner has a call, and the answer of one.
type owns struct {
	Call  string `json:"call"`
	Owner string `json:"owner"` // who says it
	Seq   uint64 `json:"seq"`   // its delivery
	Reply string `json:"reply,omitempty"`
	// Certain says that nobody else can have the call.
	Certain bool `json:"certain,omitempty"`
	// Cancel makes it about a call that is not stored, which its owner is to cancel: of a tenant, or whose it may be.
	Cancel string `json:"cancel,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

func (w *who) ask(e protocol.Effect) {
	w.send(w.subject, owns{Call: e.Call, Owner: w.own, Seq: e.Seq, Reply: w.reply})
}

func (w *who) answer(e protocol.Effect) {
	w.mu.Lock()
	to := w.askers[e.To]
	w.mu.Unlock()
	w.send(to, owns{Call: e.Call, Owner: w.own, Seq: e.Seq, Certain: e.Yes})
}

func (w *who) send(to string, o owns) {
	if err := w.nc.Publish(to, rawjson.Encode(o)); err != nil {
		w.log.Debug("a question or an answer who has a call was not sent", "call", o.Call, "err", err)
	}
}

// asked takes another owner's question.
func (w *who) asked(m *nats.Msg) {
	var q owns
	if json.Unmarshal(m.Data, &q) != nil || q.Owner == w.own || q.Owner == "" || q.Reply == "" {
		return
	}
	if q.Cancel != "" {
		said := cancelNo
		if w.bound(q.Tenant, q.Call) {
			said = cancelYes
		}
		w.send(q.Reply, owns{Call: q.Call, Owner: w.own, Seq: q.Seq, Cancel: said})
		return
	}
	w.mu.Lock()
	if len(w.askers) > 10_000 {
		clear(w.askers) // names of processes that are gone
	}
	w.askers[q.Owner] = q.Reply
	w.mu.Unlock()
	w.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Deliveries.WhoOwns(now, q.Call, q.Owner, q.Seq, out)
	})
}

// answered takes another owner's answer.
func (w *who) answered(m *nats.Msg) {
	var a owns
	if json.Unmarshal(m.Data, &a) != nil || a.Owner == "" || a.Owner == w.own {
		return
	}
	if a.Cancel != "" {
		w.cancelled(a)
		return
	}
	w.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Owned(now, protocol.Claim{Call: a.Call, Owner: a.Owner, Seq: a.Seq, Certain: a.Certain}, out)
	})
}
