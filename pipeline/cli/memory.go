package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

const (
	// mostGarbage is how much garbage a small process keeps, in percent of what lives: to collect rarely saves a process
	// that mostly copies a good part of its time. leastGarbage is that of a large one, which garbage for the whole machine
	// would do no good.
	mostGarbage, leastGarbage = 400, 50
	// heap is what lives and garbage together, in bytes, in a process in between.
	heap = 192 << 20
)

// collectRarely lets garbage grow to a multiple of what lives before it is collected, and to garbageOf in a process
// that holds much; near the end of the machine's or the container's memory it is collected as often as need be. The
// variables GOGC and GOMEMLIMIT have their usual meaning and win. Where nobody says how much memory there is,
// everything stays as Go has it.
func collectRarely(getenv func(string) string) {
	limit := memory()
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") == "" && limit == 0 {
		return
	}
	debug.SetGCPercent(mostGarbage)
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 4 * 3)
	}
	now := mostGarbage
	afterEachCollection(func() {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if p := garbageOf(live[0].Value.Uint64()); p != now {
			now = p
			debug.SetGCPercent(p)
		}
	})
}

// garbageOf is how much garbage may be beside so many bytes that live, in percent of them.
func garbageOf(live uint64) int {
	if live >= heap {
		return leastGarbage
	}
	p := int((heap - live) * 100 / max(live, 1))
	return min(max(p/10*10, leastGarbage), mostGarbage) // in steps, because each change stops all goroutines for a moment
}

// afterEachCollection calls do when garbage has been collected, as long as the process lives.
func afterEachCollection(do func()) {
	mark := &struct{ self any }{} // garbage itself, for the next collection to find
	runtime.AddCleanup(mark, func(int) {
		do()
		afterEachCollection(do)
	}, 0)
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
