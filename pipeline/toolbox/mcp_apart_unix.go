//go:build unix

package toolbox

import (
	"os/exec"
	"syscall"
)

// apart gives a program a process group of its own: an interrupt at the terminal is for us, who stop it when its calls
// have ended. It ends with its stdin if we are killed.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
