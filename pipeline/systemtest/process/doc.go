// Package process tests whole installations: the two commands as processes of the operating system, on a NATS server
// that is a process too, with a provider that checks what it receives. It has tests only; -short leaves them out.
package process
