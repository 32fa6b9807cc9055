//go:build long

package bus_test

import (
	"strings"
	"testing"

	"github.com/shallot-nats/shallot/messages"
)

func TestLongAStoredCallSurvivesItsProcessesAtEveryStep(t *testing.T) {
	for _, f := range faults {
		for _, st := range ownerSteps {
			atStep(t, messages.Tool, st, f)
			atStep(t, messages.Model, st, f)
		}
		for _, st := range acceptSteps {
			atStep(t, messages.Tool, st, f)
		}
		for _, st := range memberSteps {
			atStep(t, messages.Tool, st, f)
			if !strings.Contains(st.name, "record") && st.name != "begins" {
				atStep(t, messages.Model, st, f)
			}
		}
	}
}
