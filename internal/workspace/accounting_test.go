package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
)

// kind is what a method of the service does.
type kind int

const (
	read   kind = iota // changes nothing; refuses without the permission
	change             // passes the gate, and writes intent and outcome
)

// account says of one method how it is called and what it must do. The tables are in accounting_table_test.go.
type account struct {
	kind kind
	// needs are the permissions each of which is enough alone. Empty: the method has another rule, told in why.
	needs []auth.Permission
	why   string
	// prepare makes what the call needs, with all rights; its result is handed to call.
	prepare func(t *testing.T, w *world) any
	call    func(ctx context.Context, w *world, a auth.Actor, arg any) error
	// allowed and refused replace the actors, where permissions alone do not decide.
	allowed func(w *world) auth.Actor
	refused func(w *world) auth.Actor
}

func (c account) ready(t *testing.T, w *world) any {
	t.Helper()
	if c.prepare == nil {
		return nil
	}
	return c.prepare(t, w)
}

// TestAccounting goes through every exported method of Service. One that is in no table fails, so that nobody adds a
// method without saying what it needs; each one is then seen to refuse, to let through, and to leave its traces.
func TestAccounting(t *testing.T) {
	parts := map[string]map[string]account{"people": peopleAccounts, "admin": adminAccounts, "host": hostAccounts, "sandboxes": sandboxAccounts, "files": fileAccounts, "watching": watchingAccounts, "idle": idleAccounts, "own": ownAccounts, "approvals": approvalAccounts, "recordings": recordingAccounts}
	known := map[string]bool{}
	service := reflect.TypeFor[*workspace.Service]()
	for _, part := range parts {
		for name := range part {
			require.False(t, known[name], "%s is in two tables", name)
			known[name] = true
			_, exists := service.MethodByName(name)
			require.True(t, exists, "%s is in a table, but Service has no such method", name)
		}
	}
	for m := range service.Methods() {
		require.True(t, known[m.Name], "%s is in no table of accounting_table_test.go: say whether it reads or changes, and what it needs", m.Name)
	}
	for part, table := range parts {
		t.Run(part, func(t *testing.T) {
			w := newWorld(t) // methods of a part share one; what they prepare is their own
			for name, c := range table {
				t.Run(name, func(t *testing.T) {
					require.True(t, len(c.needs) > 0 != (c.why != ""), "either permissions, or why there are none")
					c.checkRefused(t, w)
					if c.kind == change {
						c.checkGate(t, w)
						c.checkBrokenRecord(t, w)
					}
					c.checkAllowed(t, w)
				})
			}
		})
	}
}

// checkRefused: without the permission nothing happens, and the refusal is on record.
func (c account) checkRefused(t *testing.T, w *world) {
	actors := map[string]auth.Actor{}
	if len(c.needs) > 0 {
		actors["nobody"] = auth.Actor{Workspace: w.ann.Workspace}
		actors["nothing"] = w.with(nil)
		others := auth.Permissions{}
		for _, p := range auth.AllPermissions {
			enough := false
			for _, need := range c.needs {
				enough = enough || auth.Permissions{p}.Has(need)
			}
			if !enough {
				others = append(others, p)
			}
		}
		actors["all others"] = w.with(others)
	}
	if c.refused != nil {
		actors["refused"] = c.refused(w)
	}
	for name, a := range actors {
		arg := c.ready(t, w)
		before := w.mark(t)
		err := c.call(context.Background(), w, a, arg)
		require.Equal(t, fault.Forbidden, fault.KindOf(err), "%s: %v", name, err)
		require.Empty(t, w.gate.take(), "%s: a refused call does not reach the gate", name)
		traces := w.since(t, before)
		require.NotEmpty(t, traces, "%s: the refusal is on record", name)
		for _, e := range traces {
			require.Equal(t, audit.Refused, e.Outcome, name)
		}
	}
}

// actors gives those who may, each by one permission alone.
func (c account) actors(w *world) map[string]auth.Actor {
	if c.allowed != nil {
		return map[string]auth.Actor{"allowed": c.allowed(w)}
	}
	out := map[string]auth.Actor{}
	for _, p := range c.needs {
		out[string(p)] = w.with(auth.Permissions{p})
	}
	if len(out) == 0 {
		out["anybody"] = w.ann
	}
	return out
}

// checkAllowed: with the permission it works; a change leaves intent and outcome, a read leaves nothing.
func (c account) checkAllowed(t *testing.T, w *world) {
	for name, a := range c.actors(w) {
		arg := c.ready(t, w)
		before := w.mark(t)
		require.NoError(t, c.call(context.Background(), w, a, arg), name)
		passed := w.gate.take()
		traces := w.since(t, before)
		if c.kind == read {
			require.Empty(t, passed, "%s: a read passes no gate", name)
			require.Empty(t, traces, "%s: a read leaves no trace", name)
			continue
		}
		require.NotEmpty(t, passed, "%s: a change passes the gate", name)
		for _, what := range passed {
			require.Regexp(t, `^[a-z]+\.[a-z_]+$`, what.Name)
			require.NotEmpty(t, what.Kind, what.Name)
			intents, outcomes := 0, 0
			for _, e := range traces {
				switch {
				case e.Action != what.Name:
				case e.Outcome == audit.Started:
					intents++
				case e.Outcome == audit.OK && e.IntentSeq > 0:
					outcomes++
				}
			}
			require.Positive(t, intents, "%s: %s has an intent", name, what.Name)
			require.Equal(t, intents, outcomes, "%s: %s has its outcome", name, what.Name)
		}
	}
}

// checkGate: what the gate refuses does not happen, and the refusal is on record.
func (c account) checkGate(t *testing.T, w *world) {
	for name, a := range c.actors(w) {
		arg := c.ready(t, w)
		before := w.mark(t)
		closed := fault.New(fault.ApprovalDenied, "The gate is closed.")
		w.gate.close(closed)
		err := c.call(context.Background(), w, a, arg)
		w.gate.close(nil)
		require.Equal(t, fault.ApprovalDenied, fault.KindOf(err), "%s: %v", name, err)
		w.gate.take()
		traces := w.since(t, before)
		require.NotEmpty(t, traces, name)
		for _, e := range traces {
			require.Equal(t, audit.Refused, e.Outcome, name)
		}
	}
}

// checkBrokenRecord: what cannot be written down does not happen.
func (c account) checkBrokenRecord(t *testing.T, w *world) {
	for name, a := range c.actors(w) {
		arg := c.ready(t, w)
		before := w.mark(t)
		w.audit.broken.Store(true)
		err := c.call(context.Background(), w, a, arg)
		w.audit.broken.Store(false)
		require.Error(t, err, name)
		require.True(t, errors.Is(err, errBroken), "%s: %v", name, err)
		w.gate.take()
		require.Empty(t, w.since(t, before), name)
	}
}

func (g *gate) close(err *fault.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = nil
	if err != nil {
		g.refuse = err
	}
}

// mark gives the present end of the record and forgets what passed the gate before.
func (w *world) mark(t *testing.T) int64 {
	t.Helper()
	w.gate.take()
	head, err := w.log.Head(context.Background())
	require.NoError(t, err)
	return head.Seq
}

// since gives the rows that were recorded after a mark, newest first.
func (w *world) since(t *testing.T, mark int64) (out []audit.Event) {
	t.Helper()
	rows, err := w.log.Rows(context.Background(), mark, 1000)
	require.NoError(t, err)
	for _, r := range rows {
		if r.Action == "command.end" { // comes when it comes, of a background command from before
			continue
		}
		out = append([]audit.Event{r.Event}, out...)
	}
	return out
}

// with gives ann with exactly these permissions.
func (w *world) with(ps auth.Permissions) auth.Actor {
	a := w.ann
	a.Permissions = ps
	return a
}

// n gives a number that was not given before, for names that must differ.
func (w *world) n() string {
	w.count++
	return fmt.Sprint(w.count)
}
