//go:build !unix

package mcp

import (
	"os/exec"
	"syscall"
)

func apart(*exec.Cmd) {}

func signalGroup(cmd *exec.Cmd, sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		_ = cmd.Process.Kill()
	}
}

func endOrphans(*exec.Cmd) {}
