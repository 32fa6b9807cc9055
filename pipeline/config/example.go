package config

import (
	_ "embed" // the example is a file, so that editors and people can read it
)

//go:embed example.yaml
var example []byte

// Example returns a commented configuration that loads: the file deploy/shallot.yaml.
func Example() []byte { return append([]byte(nil), example...) }
