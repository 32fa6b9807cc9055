//go:build long

package spine_test

import "testing"

func TestLongAStoredCallSurvivesItsProcessesAtEveryStep(t *testing.T) { everyStep(t) }
