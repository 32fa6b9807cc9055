//go:build long

package bus_test

import (
	"testing"
	"time"
)

func TestLongWorkOutlivesNATS(t *testing.T) { outlives(t, 30*time.Second) }
