package handlers

import (
	"net/http"
	"strings"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

// snapshotList shows what the workspace keeps.
func (s *Server) snapshotList(v *visit) error {
	rows, err := v.snapshotRows()
	if err != nil {
		return err
	}
	p := views.SnapshotList{Shell: v.shell("Snapshots", "snapshots"), Rows: rows, Events: v.base() + "/snapshots/events"}
	return v.render(http.StatusOK, p.Page())
}

// snapshotListEvents streams the table whenever it changed.
func (s *Server) snapshotListEvents(v *visit) error {
	return v.stream(func(out *events) error {
		rows, err := v.snapshotRows()
		if err != nil {
			return err
		}
		return out.fragment("rows", rows.Table())
	})
}

func (v *visit) snapshotRows() (views.SnapshotRows, error) {
	p := views.SnapshotRows{
		Words: "A snapshot holds the memory of its sandbox, keys and passwords that programs had read included. One that nobody starts from is deleted after a time.",
	}
	list, err := v.s.o.Service.Snapshots(v.ctx(), v.actor)
	if err != nil {
		return p, err
	}
	alive, err := v.s.o.Service.Sandboxes(v.ctx(), v.actor)
	if err != nil {
		return p, err
	}
	names := map[sandbox.ID]string{}
	for _, b := range alive {
		names[b.ID] = sandboxName(b)
	}
	for _, n := range list {
		at := v.base() + "/snapshots/" + string(n.ID)
		r := views.SnapshotRow{
			ID: string(n.ID), Name: display(n.Name), Of: "gone", Owner: display(n.OwnerName), Image: display(n.Image), Size: size(n.Bytes),
			Taken: v.s.when(n.CreatedAt), Used: v.s.when(n.UsedAt), Expires: v.s.when(n.ExpiresAt),
		}
		if n.OwnerKind == string(auth.KeyUser) {
			r.Owner = "key " + r.Owner
		}
		if name, there := names[n.SandboxID]; there {
			r.Of, r.OfURL = name, v.base()+"/sandboxes/"+string(n.SandboxID)
		}
		if v.actor.May(auth.SandboxesRun) {
			r.Start = at + "/start"
		}
		if v.canDelete(n) {
			r.Delete = at + "/delete"
		}
		p.Rows = append(p.Rows, r)
	}
	return p, nil
}

// canDelete mirrors the service's rule, so that no button is shown that would be refused.
func (v *visit) canDelete(n workspace.Snapshot) bool {
	return v.actor.May(auth.SandboxesManage) || n.Mine && v.actor.May(auth.SandboxesRun)
}

// snapshot gives the one that the address names.
func (v *visit) snapshot() (workspace.Snapshot, error) {
	list, err := v.s.o.Service.Snapshots(v.ctx(), v.actor)
	if err != nil {
		return workspace.Snapshot{}, err
	}
	for _, n := range list {
		if string(n.ID) == v.Param("snapshot") {
			return n, nil
		}
	}
	return workspace.Snapshot{}, fault.New(fault.NotFound, "Snapshot not found")
}

// snapshotForm asks for a snapshot's name.
func (s *Server) snapshotForm(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.snapshotPage(b))
}

func (v *visit) snapshotPage(b workspace.Sandbox) views.Confirm {
	at := v.base() + "/sandboxes/" + string(b.ID)
	return views.Confirm{
		Shell: v.shell("Snapshot", "sandboxes"), Heading: "Snapshot of “" + sandboxName(b) + "”", Action: at + "/snapshot", Cancel: at, Button: "Take it",
		Words: []string{
			"It keeps files, memory and all that runs, and the sandbox runs on. Whoever may run code in this workspace can start sandboxes from it.",
			"What programs have in memory is in it: keys and passwords, too.",
		},
		Fields: []ui.Field{{Name: "name", Label: "Name"}},
	}
}

func (s *Server) snapshotTake(v *visit) error {
	_, err := s.o.Service.TakeSnapshot(v.ctx(), v.actor, v.Param("id"), v.FormValue("name"))
	if sentence, fields, ok := wrongIn(err); ok {
		b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
		if err != nil {
			return err
		}
		p := v.snapshotPage(b)
		p.Wrong = sentence
		p.Fields[0].Value, p.Fields[0].Wrong = v.FormValue("name"), fields["name"]
		return v.renderForm(http.StatusUnprocessableEntity, p)
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/snapshots?done=snapshot")
}

// snapshotStartForm asks how a sandbox from a snapshot is called.
func (s *Server) snapshotStartForm(v *visit) error {
	n, err := v.snapshot()
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.startPage(n, n.Name))
}

func (v *visit) startPage(n workspace.Snapshot, label string) views.StartForm {
	list := v.base() + "/snapshots"
	return views.StartForm{
		Shell: v.shell("Start", "snapshots"), Heading: "Start from “" + display(n.Name) + "”", Action: list + "/" + string(n.ID) + "/start", Cancel: list,
		Key:   sandbox.RandomID("form"),
		Label: ui.Field{Name: "label", Label: "Label", Usual: "May stay empty", Value: label},
		Keep:  ui.Field{Name: "persistent", Label: "Persistent", Hint: "It is suspended where others end: kept on disk with all that runs in it, and woken when it is used."},
	}
}

func (s *Server) snapshotStart(v *visit) error {
	n, err := v.snapshot()
	if err != nil {
		return err
	}
	made, err := s.o.Service.CreateSandbox(v.ctx(), v.actor, workspace.CreateOptions{
		SnapshotID: string(n.ID), Label: strings.TrimSpace(v.FormValue("label")), Persistent: v.FormValue("persistent") == "1",
		IdempotencyKey: v.FormValue("idempotency_key"),
	})
	if sentence, fields, ok := wrongIn(err); ok {
		p := v.startPage(n, v.FormValue("label"))
		p.Wrong, p.Label.Wrong, p.Kept = sentence, fields["label"], v.FormValue("persistent") == "1"
		return v.renderForm(http.StatusUnprocessableEntity, p)
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + string(made.ID))
}

func (s *Server) snapshotDeleteForm(v *visit) error {
	n, err := v.snapshot()
	if err != nil {
		return err
	}
	list := v.base() + "/snapshots"
	return v.renderForm(http.StatusOK, views.Confirm{
		Shell: v.shell("Delete a snapshot", "snapshots"), Heading: "Delete “" + display(n.Name) + "”?", Action: list + "/" + string(n.ID) + "/delete", Cancel: list,
		Words: []string{"It can't be brought back. Sandboxes that were started from it live on."}, Button: "Delete it", Danger: true,
	})
}

func (s *Server) snapshotDelete(v *visit) error {
	if err := s.o.Service.DeleteSnapshot(v.ctx(), v.actor, v.Param("snapshot")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/snapshots?done=deleted")
}

// forkForm asks before a fork.
func (s *Server) forkForm(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	at := v.base() + "/sandboxes/" + string(b.ID)
	return v.renderForm(http.StatusOK, views.Confirm{
		Shell: v.shell("Fork", "sandboxes"), Heading: "Fork “" + sandboxName(b) + "”?", Action: at + "/fork", Cancel: at, Button: "Fork it",
		Words: []string{"Another sandbox of yours goes on where this one is: same files, same memory, same programs. This one runs on and notices nothing."},
	})
}

func (s *Server) fork(v *visit) error {
	made, err := s.o.Service.ForkSandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + string(made.ID))
}
