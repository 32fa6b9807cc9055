//go:build !race

package pace

// Race says that the tests run with the race detector.
const Race = false
