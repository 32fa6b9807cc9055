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
		Main(m)
	}
	os.Exit(m.Run())
}

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
