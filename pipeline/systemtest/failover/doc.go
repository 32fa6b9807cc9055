// Package failover runs the whole system in this process, with providers on loopback that fail in every way that
// providers fail, and looks at what a caller gets. It has tests only.
package failover
