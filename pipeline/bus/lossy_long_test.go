//go:build long

package bus

import (
	"math/rand/v2"
	"testing"
)

func TestLongBadNetworkEndsEveryCallOnce(t *testing.T) {
	for range 5 {
		badNetwork(t, rand.Uint64(), 150, 12_000)
	}
}
