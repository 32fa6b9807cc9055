//go:build !unix

package embed

import "os"

// lock does nothing where there is no flock; two servers on one directory are then not noticed.
func lock(string) (*os.File, error) { return nil, nil }
