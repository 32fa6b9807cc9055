package spine

import "sync"

// tally counts work under way. Unlike sync.WaitGroup it may be added to while somebody waits for it to be empty: an
// end or a request may come in while a node stops.
type tally struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n comes to zero; nil while nobody waits
}

func (t *tally) Add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.n == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

func (t *tally) Done() { t.Add(-1) }

// Go runs f in a goroutine that is counted.
func (t *tally) Go(f func()) {
	t.Add(1)
	go func() {
		defer t.Done()
		f()
	}()
}

// Wait returns when nothing is under way.
func (t *tally) Wait() {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	empty := t.empty
	t.mu.Unlock()
	<-empty
}
