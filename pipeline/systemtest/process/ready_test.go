//go:build unix

package process

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// A gateway is ready when the stages that no call may leave out have somebody; what else is missing is named, and it
// serves.
func TestReadinessSaysWhoIsMissing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, base := c.gateway()
	check := func(status int, name, state, part string) {
		t.Helper()
		var text string
		require.Eventually(t, func() bool {
			r := c.http("GET", base+"/readyz", "")
			text = string(r.body)
			one := gjson.Get(text, `checks.#(name=="`+name+`")`)
			reason := one.Get("reason").Str
			return r.status == status && one.Get("state").Str == state && (part == "") == (reason == "") &&
				strings.Contains(reason, part)
		}, 30*time.Second, 50*time.Millisecond, "%s", &text)
	}
	check(503, "stages", "", "model/audit")
	check(503, "targets", "degraded", "model/demo")
	w := c.worker("--stages", "all")
	check(200, "stages", "", "")
	check(200, "targets", "degraded", "model/demo")
	c.worker("--stages", "none", "--serve", "model,tool")
	check(200, "targets", "", "")
	w.signal(syscall.SIGTERM)
	check(503, "stages", "", "model/audit")
}
