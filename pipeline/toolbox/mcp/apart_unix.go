//go:build unix

package mcp

import (
	"os/exec"
	"syscall"
	"time"
)

// apart gives a program a process group of its own: an interrupt at the terminal is for us, who stop it when its calls
// have ended. It ends with its stdin if we are killed.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals the program and what it started.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }

// endOrphans ends what is left of a program's group when the program itself has ended: npx and shells start the server as
// a child.
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
