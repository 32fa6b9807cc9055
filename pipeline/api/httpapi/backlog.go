package httpapi

import "sync/atomic"

// backlog counts what waits for the readers of all streams, so that a thousand slow ones fit into a small process.
type backlog struct {
	held atomic.Int64
	most int64
}

const (
	// streamShare is what may wait for one reader whatever waits for others.
	streamShare = 64 << 10
	// chunkCost is what a chunk takes beside its bytes.
	chunkCost = 64
)

func cost(chunks [][]byte) (n int) {
	for _, c := range chunks {
		n += len(c) + chunkCost
	}
	return n
}

// hold counts what waits from now on, or what does not any more. It reports whether too much waits in all, and more
// than its share for this reader. The queue's lock is held.
func (q *queue) hold(n int) bool {
	q.held += n
	return q.all != nil && q.all.held.Add(int64(n)) > q.all.most && q.held > streamShare
}

// written says that the chunks that were taken do not wait any more.
func (q *queue) written(chunks [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(-cost(chunks))
}

// late counts the reply of a call whose reader is behind when it ends: the reply is kept until all of it is read. It
// reports whether that is too much.
func (q *queue) late(reply int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all != nil && q.held > streamShare/4 && q.hold(reply)
}

// close counts nothing of the queue any more. It is called once, when nobody puts.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(-q.held)
}
