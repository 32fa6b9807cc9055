// Package model is the model endpoint: the table of providers, the target that sends a call's request to one of them
// and brings the reply back, streaming, and demonstration models that need no key.
//
// Bodies pass as bytes. go-openai gives the URL, the authorisation and the headers, and its HTTP client is replaced, so
// that the raw body goes in and the raw reply comes out. None of its types leave the package. The status, type and code
// of an error decide its fault, never its words.
package model
