package bus

import "sync"

// tally counts work under way. Unlike sync.WaitGroup it may be added to while somebody waits for it to be empty: an
// end or a request may come in while a node stops. Goroutines that it has started wait for more work, up to a number,
// until somebody waits: their stacks have grown already, which is a good part of what a short call costs.
type tally struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n comes to zero; nil while nobody waits
	idle  int           // goroutines that wait for work
	next  chan func()   // for them; nil ends one
	over  bool          // nobody may wait for work any more
}

// keptIdle is how many goroutines may wait for work.
const keptIdle = 128

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
	t.mu.Lock()
	t.n++
	waits := t.idle > 0
	if waits {
		t.idle--
	}
	t.mu.Unlock()
	if waits {
		t.next <- f
		return
	}
	go func() {
		for f != nil {
			t.run(f)
			f = t.rest()
		}
	}()
}

func (t *tally) run(f func()) {
	defer t.Done()
	f()
}

// rest waits for more work; nil is the end.
func (t *tally) rest() func() {
	t.mu.Lock()
	if t.over || t.idle == keptIdle {
		t.mu.Unlock()
		return nil
	}
	if t.next == nil {
		t.next = make(chan func(), keptIdle)
	}
	t.idle++
	t.mu.Unlock()
	return <-t.next
}

// Wait returns when nothing is under way. From then on no goroutine waits for work.
func (t *tally) Wait() {
	t.mu.Lock()
	t.over = true
	for ; t.idle > 0; t.idle-- {
		t.next <- nil // it has room for all that wait
	}
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
