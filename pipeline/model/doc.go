// Package model is the model endpoint: the table of providers, the target that sends a call's request to one of them
// and brings the reply back, streaming, and demonstration models that need no key.
//
// Bodies pass as bytes. go-openai gives the URL, the authorisation and the headers, and its HTTP client is the seam
// where the raw body goes in and the raw reply comes out; none of its types leave the package. Faults are told apart
// by status, type and code, never by words.
package model
