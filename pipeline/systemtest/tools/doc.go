// Package tools tests tools and remote stages in whole installations: hosts on NATS servers, in this process and as
// processes that are killed. It has tests only.
package tools
