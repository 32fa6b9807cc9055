// Package stages runs the cases of the model stages in process, and on the bus of an embedded server. The stages are
// made from YAML, as the configuration makes them. It has tests only.
package stages
