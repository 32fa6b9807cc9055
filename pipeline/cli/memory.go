package cli

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// collectRarely lets garbage grow to four times of what lives before it is collected, which saves a process that mostly
// copies a good part of its time; near the end of the machine's or the container's memory it is collected as often as
// need be. The variables GOGC and GOMEMLIMIT have their usual meaning and win. Where nobody says how much memory there
// is, everything stays as Go has it.
func collectRarely(getenv func(string) string) {
	limit := memory()
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") == "" && limit == 0 {
		return
	}
	debug.SetGCPercent(400)
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 4 * 3)
	}
}

// memory is how much this process may have: what its container allows, else what the machine has; 0 if neither is
// known.
func memory() int64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
	} {
		raw, _ := os.ReadFile(file)
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err == nil && n > 0 && n < 1<<50 { // version 1 writes a huge number for no limit, version 2 "max"
			return n
		}
	}
	raw, _ := os.ReadFile("/proc/meminfo")
	for text := range strings.Lines(string(raw)) {
		if f := strings.Fields(text); len(f) >= 2 && f[0] == "MemTotal:" {
			kb, _ := strconv.ParseInt(f[1], 10, 54)
			return kb << 10
		}
	}
	return 0
}
