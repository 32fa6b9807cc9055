// Package files reads files that operators name. Such a name may be wrong in every way, and may lead to something that
// never ends: a device, or a pipe that nobody writes to.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Patience is how long a pipe may take to give all that it has.
const Patience = 10 * time.Second

// Read reads a whole file of at most so many bytes. A pipe works too, such as that of a shell's <(command); one that
// gives nothing is an error, where a regular file may be empty. Errors name the file and what is wrong with it.
func Read(name string, most int64) ([]byte, error) { return read(name, most, Patience) }

func read(name string, most int64, patience time.Duration) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // else the opening waits for somebody who writes
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, failed(name, "it is a directory; name a file in it")
	}
	_ = f.SetReadDeadline(time.Now().Add(patience)) // files know no deadline, and need none
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, failed(name, fmt.Sprintf("it is a pipe whose other end did not finish within %s", patience))
	case err != nil:
		return nil, err
	case int64(len(raw)) > most:
		return nil, failed(name, fmt.Sprintf("it has more than %d bytes", most))
	case len(raw) == 0 && info.Mode()&fs.ModeNamedPipe != 0:
		return nil, failed(name, "it is a pipe that nobody writes to")
	}
	return raw, nil
}

func failed(name, why string) error {
	return &fs.PathError{Op: "read", Path: name, Err: errors.New(why)}
}
