package handlers

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/views"
	"sandgate/views/ui"
)

// sandboxLimitsForm asks for other limits of one sandbox.
func (s *Server) sandboxLimitsForm(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.sandboxLimits(b))
}

func (v *visit) sandboxLimits(b workspace.Sandbox) views.LimitsForm {
	at := v.base() + "/sandboxes/" + string(b.ID)
	r := b.Resources
	return views.LimitsForm{
		Shell: v.shell("Limits", "sandboxes"), Heading: "Limits of “" + sandboxName(b) + "”", Action: at + "/limits", Cancel: at, Button: "Change",
		Words: []string{"They hold at once; everything inside runs on. A limit below what is in use is refused. The size of the disk is fixed when a sandbox is made."},
		Fields: []ui.Field{
			{Name: "cpu", Label: "CPU cores", Value: strconv.FormatFloat(r.CPU, 'f', -1, 64)},
			{Name: "memory_mb", Label: "Memory, MB", Value: strconv.FormatInt(r.MemoryMB, 10)},
			{Name: "pids", Label: "Processes", Value: strconv.FormatInt(r.PIDs, 10)},
		},
	}
}

func (s *Server) sandboxLimits(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	limits, bad := limitsOf(v)
	if err = asWrong(bad); err == nil {
		_, err = s.o.Service.UpdateSandbox(v.ctx(), v.actor, string(b.ID), workspace.SandboxPatch{Resources: &limits.Most})
	}
	if sentence, fields, ok := wrongIn(err); ok {
		return v.renderForm(http.StatusUnprocessableEntity, v.mistaken(v.sandboxLimits(b), sentence, fields))
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + string(b.ID) + "?done=limits")
}

// workspaceLimitsForm asks what the workspace allows its sandboxes.
func (s *Server) workspaceLimitsForm(v *visit) error {
	l, err := s.o.Service.WorkspaceLimits(v.ctx(), v.actor)
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.workspaceLimits(l))
}

func (v *visit) workspaceLimits(l workspace.WorkspaceLimits) views.LimitsForm {
	field := func(name, label string, own, ceiling float64) ui.Field {
		f := ui.Field{Name: name, Label: label, Usual: "no limit"}
		if own > 0 {
			f.Value = strconv.FormatFloat(own, 'f', -1, 64)
		}
		if ceiling > 0 {
			f.Usual = strconv.FormatFloat(ceiling, 'f', -1, 64)
			f.Hint = "At most " + f.Usual + " on this installation."
		}
		return f
	}
	c := l.Ceiling
	return views.LimitsForm{
		Shell: v.shell("Limits", "people"), Heading: "Limits of this workspace", Action: v.base() + "/limits", Cancel: v.base() + "/people", Button: "Set",
		Words: []string{
			"The most that one sandbox may have, and how many may be alive at a time. Empty fields set nothing; sandboxes that are there keep what they have.",
			fmt.Sprintf("%d count at this moment.", l.InUse),
		},
		Fields: []ui.Field{
			field("cpu", "CPU cores", l.Own.Most.CPU, c.Most.CPU), field("memory_mb", "Memory, MB", float64(l.Own.Most.MemoryMB), float64(c.Most.MemoryMB)),
			field("disk_mb", "Disk, MB", float64(l.Own.Most.DiskMB), float64(c.Most.DiskMB)), field("pids", "Processes", float64(l.Own.Most.PIDs), float64(c.Most.PIDs)),
			field("sandboxes", "Sandboxes", float64(l.Own.Sandboxes), float64(c.Sandboxes)),
		},
	}
}

func (s *Server) setWorkspaceLimits(v *visit) error {
	own, bad := limitsOf(v)
	err := asWrong(bad)
	if err == nil {
		_, err = s.o.Service.SetWorkspaceLimits(v.ctx(), v.actor, own)
	}
	if sentence, fields, ok := wrongIn(err); ok {
		l, err := s.o.Service.WorkspaceLimits(v.ctx(), v.actor)
		if err != nil {
			return err
		}
		return v.renderForm(http.StatusUnprocessableEntity, v.mistaken(v.workspaceLimits(l), sentence, fields))
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/people?done=limits")
}

// mistaken shows what was typed again, with what is wrong with it.
func (v *visit) mistaken(p views.LimitsForm, sentence string, fields map[string]string) views.LimitsForm {
	p.Wrong = sentence
	for i := range p.Fields {
		f := &p.Fields[i]
		f.Value, f.Wrong = v.FormValue(f.Name), cmp.Or(fields[f.Name], fields["resources."+f.Name])
	}
	return p
}

func asWrong(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "Some fields are not valid.")
	e.Fields = bad
	return e
}

// limitsOf reads a form of limits. Empty fields are zero; bad tells what is no number.
func limitsOf(v *visit) (l workspace.Limits, bad map[string]string) {
	bad = map[string]string{}
	l.Most = resourcesOf(v, bad)
	if t := strings.TrimSpace(v.FormValue("sandboxes")); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil || n <= 0 {
			bad["sandboxes"] = "must be a whole number"
		}
		l.Sandboxes = n
	}
	return l, bad
}

// resourcesOf reads the limits of one sandbox from a form.
func resourcesOf(v *visit, bad map[string]string) (r sandbox.Resources) {
	if t := strings.TrimSpace(v.FormValue("cpu")); t != "" {
		n, err := strconv.ParseFloat(strings.Replace(t, ",", ".", 1), 64)
		if err != nil || !(n > 0) {
			bad["cpu"] = "must be a number of cores"
		}
		r.CPU = n
	}
	for name, to := range map[string]*int64{"memory_mb": &r.MemoryMB, "disk_mb": &r.DiskMB, "pids": &r.PIDs} {
		t := strings.TrimSpace(v.FormValue(name))
		if t == "" {
			continue
		}
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil || n <= 0 {
			bad[name] = "must be a whole number"
		}
		*to = n
	}
	return r
}
