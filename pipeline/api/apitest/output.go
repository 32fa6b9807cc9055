package apitest

import (
	"bytes"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Output is what a process or a log says, to be read while it is written, by any number of goroutines. The zero value
// is ready for use.
type Output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed when more is written; nil while nobody waits
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown != nil {
		close(o.grown)
		o.grown = nil
	}
	return o.text.Write(b)
}

// String is all that was said so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *Output) more() (said string, grown <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown == nil {
		o.grown = make(chan struct{})
	}
	return o.text.String(), o.grown
}

// Await waits until what the expression finds was said, and returns its groups. The test fails if that takes more than
// 30 seconds, or if ended is closed before; a nil channel never is.
func (o *Output) Await(t testing.TB, ended <-chan struct{}, expr string) []string {
	t.Helper()
	re := regexp.MustCompile(expr)
	limit := time.After(30 * time.Second)
	for {
		said, grown := o.more()
		if m := re.FindStringSubmatch(said); m != nil {
			return m
		}
		select {
		case <-grown:
		case <-ended:
			require.FailNow(t, "it ended before it said "+expr, said)
		case <-limit:
			require.FailNow(t, "it did not say "+expr+" in time", said)
		}
	}
}
