// Package pace says how much the suites do at once, and how often. They wait for most of their time: for deadlines,
// lost leases, and processes that start and stop.
package pace

import (
	"flag"
	"strconv"
)

// Parallel has up to n tests of the package run at once, unless the command line says how many; with the race detector,
// which makes all that runs several times as slow, a quarter. It is for TestMain.
func Parallel(n int) {
	flag.Parse()
	f := flag.Lookup("test.parallel")
	if f == nil || f.Value.String() != f.DefValue {
		return
	}
	_ = flag.Set(f.Name, strconv.Itoa(Rounds(n))) // it is a number
}

// Rounds is how many of n rounds a suite does that kills processes. With the race detector it is a quarter: rounds are
// there for the moments in which a process may die, and the run without the detector tries them all.
func Rounds(n int) int {
	if Race {
		return (n + 3) / 4
	}
	return n
}
