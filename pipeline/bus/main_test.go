package bus_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// afterTests waits for nodes and servers that end behind the tests' backs.
var afterTests sync.WaitGroup

// scratch is the directory of all servers of a run. It outlives single tests, because their servers do.
var scratch string

func TestMain(m *testing.M) {
	if part := os.Getenv("SHALLOT_PART"); part != "" {
		os.Exit(runPart(part)) // this binary again, as one process of an installation (parts_test.go)
	}
	pace.Parallel(16) // most tests wait for real times of the protocol and use little of the machine meanwhile
	var err error
	if scratch, err = os.MkdirTemp("", "shallot-bus-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	afterTests.Wait()
	if err := os.RemoveAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
