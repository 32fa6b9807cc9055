//go:build unix

package embed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock keeps a second server away from the directory: nats-server itself lets two write to one store, which ruins it.
// The kernel drops the lock with the process, also after kill -9.
func lock(dir string) (*os.File, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "shallot.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) { // some network file systems know no locks
		return f, nil
	}
	_ = f.Close()
	return nil, fmt.Errorf("the data directory %s is in use by another embedded NATS server; choose another with --data, "+
		"or use that server with --nats", dir)
}
