// Package stages runs the case rows of the model stages twice: in process, and on the bus of an embedded server,
// with the stages made from YAML as the configuration makes them. It has tests only.
package stages
