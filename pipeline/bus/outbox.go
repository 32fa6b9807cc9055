package bus

import "sync"

// outboxBytes bounds what waits in an outbox.
const outboxBytes = 8 << 20

// outbox sends the pieces of streamed replies, and the outcomes and ends that follow them, in the order in which they
// came. It sends from one goroutine, whatever streams there are: the connection has one lock, which is held while it
// writes, so a thousand streams that each took it would let every question and offer of the process wait behind all of
// them. It is safe for concurrent use.
type outbox struct {
	tasks *tally // counts the goroutine, which lives as long as there is something to send

	mu    sync.Mutex
	space *sync.Cond // of mu: bytes went down
	queue []outgoing
	bytes int // of queue, and of what is being sent
	busy  bool
}

// outgoing is a message of so many bytes.
type outgoing struct {
	bytes int
	send  func()
}

func newOutbox(tasks *tally) *outbox {
	b := &outbox{tasks: tasks}
	b.space = sync.NewCond(&b.mu)
	return b
}

// room waits until no more than the bound waits, as whoever writes to a connection does.
func (b *outbox) room() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.bytes > outboxBytes {
		b.space.Wait()
	}
}

// full reports whether room would wait.
func (b *outbox) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes > outboxBytes
}

// post has a message sent after those that came before it. It does not wait, whatever the bound.
func (b *outbox) post(bytes int, send func()) {
	b.mu.Lock()
	b.queue = append(b.queue, outgoing{bytes, send})
	b.bytes += bytes
	begin := !b.busy
	b.busy = true
	b.mu.Unlock()
	if begin {
		b.tasks.Go(b.run)
	}
}

func (b *outbox) run() {
	for {
		b.mu.Lock()
		batch := b.queue
		b.queue = nil
		b.busy = len(batch) > 0
		b.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, o := range batch {
			o.send()
			b.sent(o.bytes)
		}
	}
}

func (b *outbox) sent(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= bytes
	b.space.Broadcast()
}
