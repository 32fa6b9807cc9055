//go:build race

package protocol

// The race detector makes a seed ten times as slow, and the machines run on one goroutine each.
const defaultSeeds = 100
