package bus

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// longestReply bounds the reply subjects of callers, in bytes. An inbox of a client library has about 30.
const longestReply = 512

// replyGuard counts requests that were refused because their reply subject is not an inbox.
type replyGuard struct {
	refused atomic.Int64
	said    atomic.Int64 // Unix nanoseconds of the last warning
}

// Answering wraps the handler of everything that answers whoever asks. The reply subject is the caller's word, and we
// may publish where they may not: an answer that went there would switch a stage, decide an approval or write a key in
// our name. So a request whose reply subject is not an inbox is dropped before anything is done for it. Nothing is sent
// back, for there is nobody to send it to. A request without a reply subject passes: nothing is sent for it.
func (n *Node) Answering(serve nats.MsgHandler) nats.MsgHandler {
	return func(m *nats.Msg) {
		if m.Reply == "" || n.inboxAllowed(m.Reply) {
			serve(m)
			return
		}
		total := n.guard.refused.Add(1)
		now, last := time.Now().UnixNano(), n.guard.said.Load()
		if now-last >= int64(time.Minute) && n.guard.said.CompareAndSwap(last, now) {
			n.log.Warn("a request was refused: its reply subject is not an inbox; said once a minute", "subject", m.Subject,
				"reply", headerValue(m.Reply[:min(len(m.Reply), 100)]), "allowed", n.cfg.InboxPrefixes, "refused", total)
		}
	}
}

// inboxAllowed reports whether answers may go to a subject: an inbox by one of the configured prefixes, that can be
// published on as it is.
func (n *Node) inboxAllowed(subject string) bool {
	if len(subject) > longestReply || strings.ContainsAny(subject, "*>") || strings.ContainsFunc(subject, notPlain) ||
		strings.HasSuffix(subject, ".") || strings.Contains(subject, "..") {
		return false
	}
	for _, p := range n.cfg.InboxPrefixes {
		if len(subject) > len(p) && strings.HasPrefix(subject, p) {
			return true
		}
	}
	return false
}

// notPlain is what a reply subject never has: a blank, a control character, a byte beyond ASCII.
func notPlain(r rune) bool { return r <= ' ' || r >= 0x7f }
