//go:build !linux

package failover

import "testing"

// fullListener returns an address that answers no connection.
func fullListener(*testing.T) string { return "192.0.2.1:9" }
