//go:build unix

package mcp

import (
	"os/exec"
	"syscall"
	"time"
)

// apart gives a program its own process group. An interrupt at the terminal then reaches only this process, which stops
// the program when its calls have ended. If this process is killed, the program ends with its stdin.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals the program and what it started.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }

// endOrphans ends what is left of a program's group after the program has ended: npx and shells start the server as a
// child.
func endOrphans(cmd *exec.Cmd) {
	sig := syscall.SIGTERM
	for until := time.Now().Add(endStep); syscall.Kill(-cmd.Process.Pid, sig) == nil; sig = 0 {
		if time.Now().After(until) {
			signalGroup(cmd, syscall.SIGKILL)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
