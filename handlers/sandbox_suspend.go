package handlers

import (
	"sandgate/auth"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
)

// sandboxSuspend puts a persistent sandbox to sleep.
func (s *Server) sandboxSuspend(v *visit) error {
	if _, err := s.o.Service.SuspendSandbox(v.ctx(), v.actor, v.Param("id")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + v.Param("id"))
}

// sandboxResume wakes it.
func (s *Server) sandboxResume(v *visit) error {
	if _, err := s.o.Service.ResumeSandbox(v.ctx(), v.actor, v.Param("id")); err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + v.Param("id"))
}

// asleep reports whether a sandbox is suspended, or on its way there or back: what is open on a page stays open.
func asleep(s sandbox.Status) bool {
	return s == sandbox.Suspended || s == sandbox.Suspending || s == sandbox.Resuming
}

// passages adds the buttons that suspend and wake, and make more of one.
func (v *visit) passages(h views.SandboxHead, b workspace.Sandbox) views.SandboxHead {
	at := v.base() + "/sandboxes/" + string(b.ID)
	switch {
	case b.Status == sandbox.Running && b.Persistent && v.canKill(b):
		h.SuspendURL = at + "/suspend"
	case b.Status == sandbox.Suspended && v.actor.May(auth.SandboxesRun):
		h.ResumeURL = at + "/resume"
	}
	if (b.Status == sandbox.Running || b.Status == sandbox.Suspended) && v.actor.May(auth.SandboxesRun) {
		h.SnapshotURL, h.ForkURL = at+"/snapshot", at+"/fork"
	}
	return h
}
