package messages_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// What turned one body into another is told by place, as people would say it.
func TestChangesAreToldByPlace(t *testing.T) {
	t.Parallel()
	many := func(n string) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, `,{"content":"%s%d"}`, n, i)
		}
		return `[` + b.String()[1:] + `]`
	}
	for name, c := range map[string]struct{ was, now, want string }{
		"nothing":               {`{"a":1}`, `{"a":1}`, ``},
		"a new body":            {``, `{"a":1}`, `add  {"a":1};`},
		"no body any more":      {`{"a":1}`, ``, `remove  ;`},
		"a value deep inside":   {`{"a":[{"b":1},{"b":2}]}`, `{"a":[{"b":1},{"b":3}]}`, `set /a/1/b 3;`},
		"a field more and less": {`{"a":1,"b":2}`, `{"b":2,"c/d":3}`, `add /c~1d 3;remove /a ;`},
		"another order":         {`{"a":1,"b":2}`, `{"b":2,"a":1}`, ``},
		"an element at the head": {`{"m":[{"r":"user"}]}`, `{"m":[{"r":"system"},{"r":"user"}]}`,
			`add /m/0 {"r":"system"};`},
		"an element in the middle": {`[1,2,3]`, `[1,2,9,3]`, `add /2 9;`},
		"elements at the end":      {`[1]`, `[1,2,3]`, `add /1 2;add /2 3;`},
		"elements removed":         {`[1,2,3,4]`, `[1,4]`, `remove /1 ;remove /2 ;`},
		"some for others":          {`[1,2,3]`, `[1,8,9,3]`, `set  [1,8,9,3];`},
		"another kind of value":    {`{"a":[]}`, `{"a":{}}`, `set /a {};`},
		"too much to tell":         {many("a"), many("b"), `set  ` + many("b") + `;`},
		"one of the same":          {`[1,1,1]`, `[1,1]`, `remove /2 ;`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, ch := range messages.Changes([]byte(c.was), []byte(c.now)) {
				got += ch.Op + " " + ch.At + " " + string(ch.Now) + ";"
			}
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzChanges(f *testing.F) {
	f.Add(`{"a":[1,{"b":"c"}]}`, `{"a":[2]}`)
	f.Fuzz(func(t *testing.T, was, now string) {
		a, b := messages.NewCall(messages.Model, "", []byte(was)), messages.NewCall(messages.Model, "", []byte(now))
		changes := messages.Changes(a.Request(), b.Request())
		require.LessOrEqual(t, len(changes), 16)
	})
}
