package httpapi

import (
	"io"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// backlog counts what waits for the readers of all streams, and of large replies, so that a thousand slow ones fit into
// a small process.
type backlog struct {
	held atomic.Int64
	most int64
}

const (
	// streamShare is what may wait for one reader whatever waits for others.
	streamShare = 64 << 10
	// chunkCost is what a chunk takes beside its bytes.
	chunkCost = 64
	// pieceBytes is how much of a reply in a file is in memory at a time.
	pieceBytes = 8 << 10
)

func cost(chunks [][]byte) (n int) {
	for _, c := range chunks {
		n += len(c) + chunkCost
	}
	return n
}

// reply answers with a whole reply. It waits here until its reader has taken it: a large one in a file, if too much
// waits in memory for all readers together.
func (s *callRunner) reply(w http.ResponseWriter, contentType string, body []byte) {
	size := len(body)
	if size <= streamShare || s.backlog.hold(size) {
		api.WriteBody(w, http.StatusOK, contentType, body)
		if size > streamShare {
			s.backlog.held.Add(-int64(size))
		}
		return
	}
	f, gone, err := lay(body)
	if err != nil {
		s.log.Warn("too much waits for readers that are slow, and a reply could not be moved to a file: it stays in "+
			"memory; let the process write to its directory for temporary files (TMPDIR)", "bytes", size, "err", err)
		api.WriteBody(w, http.StatusOK, contentType, body)
		return
	}
	body = nil // the file has it
	defer gone()
	api.BeginBody(w, http.StatusOK, contentType, size)
	piece := make([]byte, pieceBytes)
	_, _ = io.CopyBuffer(w, io.LimitReader(f, int64(size)), piece) // it fails only if the caller is gone
}

// hold counts a reply that waits from now on, if there is room for it.
func (b *backlog) hold(size int) bool {
	if b.held.Add(int64(size)) <= b.most {
		return true
	}
	b.held.Add(-int64(size))
	return false
}

// lay puts a reply into a file that nobody else may read. gone closes and removes it.
func lay(body []byte) (f *os.File, gone func(), err error) {
	if f, err = os.CreateTemp("", "shallot-reply-"); err != nil {
		return nil, nil, err
	}
	removed := os.Remove(f.Name()) // at once, where open files can be: then it goes whatever becomes of this process
	gone = func() {
		_ = f.Close()
		if removed != nil {
			_ = os.Remove(f.Name())
		}
	}
	if _, err = f.Write(body); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		gone()
	}
	return f, gone, err
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
