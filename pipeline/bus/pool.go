package bus

import "sync"

// pool runs jobs in at most a given number of goroutines, which it keeps: their stacks have grown already. Jobs that
// find none free wait in order; where too many do, whoever brings the next one waits too.
type pool struct {
	most int
	jobs chan func()
	quit chan struct{}
	live sync.WaitGroup

	mu   sync.Mutex
	work int // goroutines
	idle int // of them, that wait for a job that nobody has brought yet
}

// poolBacklog is how many jobs may wait.
const poolBacklog = 4096

func newPool(most int) *pool {
	return &pool{most: most, jobs: make(chan func(), poolBacklog), quit: make(chan struct{})}
}

// do has the job run. It reports false after end.
func (p *pool) do(job func()) bool {
	p.mu.Lock()
	if p.idle == 0 && p.work < p.most {
		p.work++
		p.mu.Unlock()
		p.live.Go(func() { p.run(job) })
		return true
	}
	if p.idle > 0 {
		p.idle--
	}
	p.mu.Unlock()
	select {
	case p.jobs <- job:
		return true
	case <-p.quit:
		return false
	}
}

func (p *pool) run(job func()) {
	for {
		job()
		p.mu.Lock()
		p.idle++
		p.mu.Unlock()
		select {
		case job = <-p.jobs:
		case <-p.quit:
			return
		}
	}
}

// end lets the goroutines go and waits for them. Jobs that wait are dropped.
func (p *pool) end() {
	close(p.quit)
	p.live.Wait()
}
