// Package agents tests runs of agents on the bus, in one process and in several that die.
package agents
