package mcpapi

import (
	"context"
	"errors"
	"io"
)

// ServeStdio serves one client until stdin ends and its calls are answered, or until ctx ends. Then the calls are
// cancelled, and answered before the session ends. A line has at most limit bytes.
func (f *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser, limit int) error {
	l := stdioTransport{in: in, out: out, limit: limit, stop: ctx.Done()}
	defer context.AfterFunc(ctx, f.halt)()
	session, err := f.server.Connect(context.WithoutCancel(ctx), l, nil)
	if err != nil {
		return err
	}
	err = session.Wait()
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil // the client closed stdin, or the process was told to stop
	}
	return err
}
