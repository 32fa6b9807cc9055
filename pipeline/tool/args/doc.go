// Package args reads the arguments of a tool call against a JSON Schema: what is missing, what can be made to fit, and
// what is wrong, in words that a model can act on. It knows schemas and values, but no tools.
package args
