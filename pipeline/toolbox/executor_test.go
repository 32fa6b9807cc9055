package toolbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// An error of Go's own kinds gets its class where it is made; words never decide (S2-FALL-5, RP-2, RP-6).
func TestErrorsOfFunctions(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err    error
		code   messages.Code
		unsent bool
	}{
		"dial":         {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, messages.ToolNetwork, true},
		"dial timeout": {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, messages.ToolNetwork, true},
		"no such host": {&net.DNSError{IsNotFound: true}, messages.ToolNetwork, true},
		"read reset":   {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, messages.ToolNetwork, false},
		"read timeout": {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, messages.ToolTimeout, false},
		"cut":          {io.ErrUnexpectedEOF, messages.ToolNetwork, false},
		"own timeout":  {context.DeadlineExceeded, messages.ToolTimeout, false},
		"words":        {errors.New("connection refused: timeout"), messages.ToolError, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, _ := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
				return toolbox.Result{}, fmt.Errorf("weather: %w", row.err)
			}, goTool("x", tool.Policy{Effect: tool.EffectRead}))
			f := faultOf(t, target.Do(t.Context(), call("x", `{}`), noEmit))
			require.Equal(t, row.code, f.Code)
			require.Equal(t, row.unsent, f.Unsent)
			require.True(t, f.OfTarget())
		})
	}
}
