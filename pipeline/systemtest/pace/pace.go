// Package pace says how much the suites do at once, and how often. They wait for most of their time: for deadlines,
// lost leases, and processes that start and stop.
package pace

import (
	"flag"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Parallel has up to n tests of the package run at once, unless the command line says how many; with the race detector,
// which makes all that runs several times as slow, half of them. It is for TestMain.
func Parallel(n int) {
	flag.Parse()
	f := flag.Lookup("test.parallel")
	if f == nil || f.Value.String() != f.DefValue {
		return
	}
	if Race {
		n = (n + 1) / 2
	}
	_ = flag.Set(f.Name, strconv.Itoa(n)) // it is a number
}

// Port finds a port that nobody listens on, for a server that comes later, or comes again. It is below those that the
// system gives to outgoing connections, so that none of them takes it meanwhile.
func Port(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Rounds is how many of n rounds a suite does that kills processes. With the race detector it is a quarter: rounds are
// there for the moments in which a process may die, and the run without the detector tries them all.
func Rounds(n int) int {
	if Race {
		return (n + 3) / 4
	}
	return n
}
