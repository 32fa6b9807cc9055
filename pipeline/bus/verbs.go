package bus

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// verbTime bounds the answer to one verb.
const verbTime = 10 * time.Second

// serveVerbs subscribes to the subjects of Options.Verbs, bare and with a tenant.
func (n *Node) serveVerbs() error {
	for _, v := range n.opts.Verbs {
		name := strings.Split(v.Name, ".")
		if !n.opts.NoBareSubjects {
			if err := n.face(n.subj.Control(name...), func(m *nats.Msg) { n.serveVerb(m, "default", v) }); err != nil {
				return err
			}
		}
		own := n.subj.Control(append([]string{"tenant", "*"}, name...)...)
		if err := n.face(own, func(m *nats.Msg) {
			t := strings.Split(m.Subject, ".")
			tenant, ok := messages.Untoken(t[len(t)-len(name)-1])
			if !ok || tenant == "" {
				n.reply(m, refusal(m.Reply, messages.NewFault(messages.InvalidRequest, "subject %s names no tenant", m.Subject)))
				return
			}
			n.serveVerb(m, tenant, v)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) serveVerb(m *nats.Msg, tenant string, v Verb) {
	ctx, cancel := context.WithTimeout(context.Background(), verbTime)
	defer cancel()
	out, err := v.Serve(ctx, Ask{Tenant: tenant, Session: m.Header.Get("Shallot-Session"), Body: m.Data})
	if err != nil {
		n.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
		return
	}
	n.reply(m, &nats.Msg{Subject: m.Reply, Data: rawjson.Encode(out)})
}
