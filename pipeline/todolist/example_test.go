package todolist_test

import (
	"context"
	"fmt"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/todolist"
)

// A person edits the list of a session. Whoever names the revision that they saw does not overwrite what came since.
func ExampleChange() {
	ctx, store := context.Background(), &pipeline.Memory{}
	list, _ := todolist.Change(ctx, store, "acme", "s1", todolist.Edit{
		Items: []todolist.Put{{Title: "Read the report"}, {Title: "Answer it"}},
	})
	seen := list.Revision
	list, _ = todolist.Change(ctx, store, "acme", "s1", todolist.Edit{
		Items: []todolist.Put{{ID: 1, Status: todolist.Completed}}, Revision: seen,
	})
	for _, item := range list.Items {
		fmt.Println(item.ID, item.Status, item.Title)
	}
	_, err := todolist.Change(ctx, store, "acme", "s1", todolist.Edit{Revision: seen, Replace: true})
	fmt.Println(err != nil)
	// Output:
	// 1 COMPLETED Read the report
	// 2 PENDING Answer it
	// true
}
