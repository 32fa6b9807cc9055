package pipelinetest

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and ends the process. The tests fail if one of their goroutines is still there a
// minute after they have ended: whoever starts one waits for it. known are goroutines of libraries that stay, such as
// [goleak.IgnoreTopFunction].
func Main(m *testing.M, known ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		code = leaks(known)
	}
	os.Exit(code)
}

// MainOfProcesses is [Main] for packages whose tests run whole processes. What they leave behind is looked for in long
// runs only (SHALLOT_LONG), because a server under load may take its time to end.
func MainOfProcesses(m *testing.M) {
	if os.Getenv("SHALLOT_LONG") != "" {
		Main(m, goleak.IgnoreTopFunction(lateReset))
	}
	os.Exit(m.Run())
}

// lateReset is a goroutine of nats.go that stays where it begins only after the object that it was made for is stored:
// the channel on which it would hear of the end is nil by then (1.55.0). It happens on a busy machine, about once in
// ten runs of the tests of the host.
const lateReset = "github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"

func leaks(known []goleak.Option) (code int) {
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for end := time.Now().Add(time.Minute); ; {
		err := goleak.Find(known...)
		if err == nil {
			return 0
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}
