// Package failover tests what callers get when providers fail: the whole system runs in this process, with providers on
// loopback that fail in every way that real ones do. It has tests only.
package failover
