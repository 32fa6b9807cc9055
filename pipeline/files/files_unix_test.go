//go:build unix

package files

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a name leads to, reading ends soon, and the error says what it was.
func TestAFileIsReadWhateverItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(path("four"), []byte("abcd"), 0o600))
	require.NoError(t, os.WriteFile(path("five"), []byte("abcde"), 0o600))
	require.NoError(t, os.WriteFile(path("none"), nil, 0o600))
	for _, name := range []string{"lonely", "still", "open"} {
		require.NoError(t, syscall.Mkfifo(path(name), 0o600))
	}
	write := func(name, text string) *os.File { // both ends, so that the opening does not wait
		f, err := os.OpenFile(path(name), os.O_RDWR, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.WriteString(text)
		require.NoError(t, err)
		return f
	}
	write("still", "ab")
	write("open", "abcdefgh")
	for name, want := range map[string]string{
		path("four"): "", path("none"): "", os.DevNull: "",
		path("five"): "more than 4 bytes", "/dev/zero": "more than 4 bytes", path("open"): "more than 4 bytes",
		dir: "is a directory", path("gone"): "no such file", path("lonely"): "a pipe that nobody writes to",
		path("still"): "did not finish within",
	} {
		raw, err := read(name, 4, 100*time.Millisecond)
		if want == "" {
			require.NoError(t, err, name)
			require.LessOrEqual(t, len(raw), 4)
			continue
		}
		require.ErrorContains(t, err, want, name)
		require.ErrorContains(t, err, name)
	}
}

// What a shell's <(command) names is a pipe that somebody is writing to.
func TestAPipeIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	go func() {
		_, _ = w.WriteString("abcd")
		_ = w.Close()
	}()
	raw, err := Read(filepath.Join("/dev/fd", strconv.Itoa(int(r.Fd()))), 4)
	require.NoError(t, err)
	require.Equal(t, "abcd", string(raw))
}
