package handlers

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandgate/internal/approval"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
	"sandgate/views"
	"sandgate/views/ui"
)

// sandboxForm shows the form; its fields can be given in the address, so that a link can fill it in.
func (s *Server) sandboxForm(v *visit) error {
	p := v.newSandbox(v.QueryParam)
	p.Key = sandbox.RandomID("form")
	return v.renderForm(http.StatusOK, p)
}

// newSandbox is the form with what value gives for each field.
func (v *visit) newSandbox(value func(string) string) views.NewSandbox {
	d := sandbox.DefaultResources
	base := v.base() + "/sandboxes"
	p := views.NewSandbox{
		Shell: v.shell("New sandbox", "sandboxes"), Action: base + "/new", Cancel: base,
		Label:   ui.Field{Name: "label", Label: "Label", Usual: "May stay empty"},
		Image:   ui.Field{Name: "image", Label: "Image"},
		Keep:    ui.Field{Name: "persistent", Label: "Persistent", Hint: "It is suspended where others end: kept on disk with all that runs in it, and woken when it is used."},
		CPU:     ui.Field{Name: "cpu", Label: "CPU cores", Usual: cores(d.CPU)},
		Memory:  ui.Field{Name: "memory_mb", Label: "Memory, MB", Usual: itoa(int(d.MemoryMB))},
		Disk:    ui.Field{Name: "disk_mb", Label: "Disk, MB", Usual: itoa(int(d.DiskMB))},
		PIDs:    ui.Field{Name: "pids", Label: "Processes", Usual: itoa(int(d.PIDs))},
		Cwd:     ui.Field{Name: "cwd", Label: "Starts in", Usual: "/work"},
		User:    ui.Field{Name: "user", Label: "User inside", Usual: "root"},
		Env:     ui.Field{Name: "env", Label: "Environment", Hint: "One NAME=value a line."},
		Idle:    ui.Field{Name: "idle_timeout", Label: "Ends unused after, s", Usual: itoa(int(idle.DefaultTimeout.Seconds()))},
		Longest: ui.Field{Name: "max_lifetime", Label: "Lives at most, s", Usual: itoa(int(idle.DefaultLifetime.Seconds()))},
		Mode:    ui.Field{Name: "mode", Label: "Network"},
		Allow:   ui.Field{Name: "allow", Label: "List of destinations", Hint: allowHint},
		OwnKey:  ui.Field{Name: "platform_key", Label: "A key for this server inside", Hint: "NOXUS_API_KEY and NOXUS_BACKEND_URL: programs inside may then what you may, except about people and keys, until the sandbox is gone."},
	}
	for _, f := range []*ui.Field{&p.Label, &p.Image, &p.CPU, &p.Memory, &p.Disk, &p.PIDs, &p.Cwd, &p.User, &p.Idle, &p.Longest, &p.Env, &p.Mode, &p.Allow, &p.OwnKey} {
		f.Value = value(f.Name)
	}
	p.Kept = value("persistent") == "1"
	p.More = p.CPU.Value+p.Memory.Value+p.Disk.Value+p.PIDs.Value+p.Cwd.Value+p.User.Value+p.Idle.Value+p.Longest.Value+p.Env.Value+p.Allow.Value+p.OwnKey.Value != ""
	p.Asks = answerFields("approval.", approval.Policy{
		Command: approval.Answer(value("approval.command")), Write: approval.Answer(value("approval.write")), Terminal: approval.Answer(value("approval.terminal")),
		Network: approval.Answer(value("approval.network")), Port: approval.Answer(value("approval.port")),
	})
	p.Modes, p.WantsKey = v.modeChoices(sandbox.NetworkMode(p.Mode.Value)), p.OwnKey.Value == "1"
	v.fillImages(&p)
	return p
}

// fillImages lists the images; the bar stands for the chosen one while it is not ready.
func (v *visit) fillImages(p *views.NewSandbox) {
	names := v.s.o.Images.ImageNames()
	if len(names) == 0 {
		names = []string{"base"}
	}
	chosen := names[0]
	for _, n := range names {
		text := n
		state, _, _ := v.s.o.Images.ImageState(n)
		if state != "ready" {
			text += " (" + state + ")"
		}
		if n == p.Image.Value {
			chosen = n
		}
		p.Images = append(p.Images, ui.Choice{Value: n, Text: text, Selected: n == p.Image.Value})
	}
	p.Building = v.progress(chosen)
}

// progress is the bar of an image, nil when it is ready.
func (v *visit) progress(image string) *views.Progress {
	state, percent, detail := v.s.o.Images.ImageState(image)
	if state == "ready" {
		return nil
	}
	return &views.Progress{
		Image: image, State: state, Percent: max(0, min(100, percent)), Detail: displayLines(detail), URL: v.base() + "/images/" + image,
	}
}

// displayLines is display that keeps line ends, for logs.
func displayLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = display(lines[i])
	}
	return strings.Join(lines, "\n")
}

// imageProgress answers the bar that asks again; nothing is left of it once the image is ready.
func (s *Server) imageProgress(v *visit) error {
	name := v.Param("image")
	for _, known := range s.o.Images.ImageNames() {
		if known != name {
			continue
		}
		if p := v.progress(name); p != nil {
			return v.render(http.StatusOK, p.Bar())
		}
		return v.render(http.StatusOK, ui.Note(ui.Message{Tone: ui.Ok, Text: "The image is ready."}))
	}
	return fault.New(fault.NotFound, "There is no such image.")
}

func (s *Server) sandboxCreate(v *visit) error {
	o, bad := createOptions(v)
	var made workspace.Sandbox
	var err error
	if len(bad) > 0 {
		e := fault.New(fault.Invalid, "Some fields are not valid.")
		e.Fields = bad
		err = e
	} else {
		made, err = s.o.Service.CreateSandbox(v.ctx(), v.actor, o)
	}
	if sentence, fields, ok := wrongIn(err); ok {
		p := v.newSandbox(v.FormValue)
		p.Wrong, p.Key = sentence, sandbox.RandomID("form")
		for _, f := range []*ui.Field{&p.Label, &p.Image, &p.CPU, &p.Memory, &p.Disk, &p.PIDs, &p.Cwd, &p.User, &p.Idle, &p.Longest, &p.Env, &p.Mode, &p.Allow, &p.OwnKey} {
			f.Wrong = cmp.Or(fields[f.Name], fields["resources."+f.Name], fields["network."+f.Name])
		}
		p.More = p.More || p.CPU.Wrong+p.Memory.Wrong+p.Disk.Wrong+p.PIDs.Wrong+p.Cwd.Wrong+p.User.Wrong+p.Idle.Wrong+p.Longest.Wrong+p.Env.Wrong+p.Allow.Wrong+p.OwnKey.Wrong != ""
		return v.renderForm(http.StatusUnprocessableEntity, p)
	}
	if err != nil {
		return err
	}
	return v.goTo(v.base() + "/sandboxes/" + string(made.ID))
}

// createOptions reads the form. Empty fields take the defaults; bad tells what is no number.
func createOptions(v *visit) (o workspace.CreateOptions, bad map[string]string) {
	bad = map[string]string{}
	o = workspace.CreateOptions{
		Label: strings.TrimSpace(v.FormValue("label")), Image: v.FormValue("image"), Cwd: strings.TrimSpace(v.FormValue("cwd")),
		User: strings.TrimSpace(v.FormValue("user")), IdempotencyKey: v.FormValue("idempotency_key"),
		Persistent: v.FormValue("persistent") == "1",
		Approval:   answersOf(v, "approval."),
		Network:    networkOf(v), PlatformKey: v.FormValue("platform_key") == "1",
	}
	o.Resources = resourcesOf(v, bad)
	for name, to := range map[string]*time.Duration{"idle_timeout": &o.IdleTimeout, "max_lifetime": &o.MaxLifetime} {
		t := strings.TrimSpace(v.FormValue(name))
		if t == "" {
			continue
		}
		n, err := strconv.ParseInt(t, 10, 32)
		if err != nil || n <= 0 {
			bad[name] = "must be a whole number of seconds"
		}
		*to = time.Duration(n) * time.Second
	}
	for line := range strings.Lines(v.FormValue("env")) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			bad["env"] = "every line must be NAME=value"
			continue
		}
		if o.Env == nil {
			o.Env = map[string]string{}
		}
		o.Env[strings.TrimSpace(name)] = value
	}
	return o, bad
}
