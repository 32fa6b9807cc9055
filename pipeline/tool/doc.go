// Package tool is what a tool is, without running one: its definition, its policy, how its arguments are read,
// when it may be tried again and how long it may take. It is pure: it opens no connection and starts no goroutine, so
// that the tool stages can import it (package toolbox runs tools).
package tool
