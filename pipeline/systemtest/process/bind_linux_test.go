package process

import (
	"os/exec"
	"syscall"
)

// bind makes a process end with this one, so that a test binary that is killed leaves nothing behind.
func bind(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
