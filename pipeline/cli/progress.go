package cli

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows people how far a command is: one line on a terminal, written over and taken away at the end. Where
// nobody looks, in a file or a pipe, there is nothing.
type progress struct {
	out   io.Writer // nil: nobody looks
	every time.Duration
	shown time.Time
}

// progressOn shows progress where out is a terminal.
func progressOn(out io.Writer) *progress {
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &progress{out: out, every: 200 * time.Millisecond}
		}
	}
	return &progress{}
}

// clearLine goes to the beginning of the line and empties it.
const clearLine = "\r\x1b[K"

// say shows a line, unless one was shown a moment ago.
func (p *progress) say(format string, args ...any) {
	if p.out == nil || time.Since(p.shown) < p.every {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.out, clearLine+format, args...)
}

// end takes the line away.
func (p *progress) end() {
	if p.out != nil && !p.shown.IsZero() {
		fmt.Fprint(p.out, clearLine)
	}
}
