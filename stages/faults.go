package stages

import (
	"errors"
	"fmt"
)

// faults collects what is wrong with a configuration. The text of each begins with its key, so that the loader can say
// where it stands; what concerns the whole section has none.
type faults []error

// when adds a fault if something is wrong.
func (f *faults) when(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

func (f faults) join() error { return errors.Join(f...) }

// inSection is an error about the section of another stage, whose settings this one shares.
type inSection struct {
	section string
	error
}

// under puts a path in front of an error, or of each that is joined in it.
func under(path string, err error) error {
	all := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok && errors.Join(j.Unwrap()...).Error() == err.Error() {
		all = j.Unwrap()
	}
	var f faults
	for _, e := range all {
		f.when(true, "%s: %w", path, e)
	}
	return f.join()
}
