package main

import (
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/image"
	"sandgate/sandbox/runsc"
)

type setupCmd struct {
	place  `embed:""`
	Mirror string `help:"Debian mirror to build images from; default: the host's own." env:"SANDGATE_MIRROR" placeholder:"URL"`
	Source string `help:"Folder of the module that pins gVisor; runsc is built from it." env:"SANDGATE_RUNSC_SOURCE" default:"tools/runsc" placeholder:"DIR"`
	Image  bool   `help:"Build the base image too." default:"true" negatable:"" env:"SANDGATE_SETUP_IMAGE"`
}

// Run prepares what is missing and says what it does.
func (c *setupCmd) Run(e *env) error {
	if c.Runsc == "" {
		path, err := runsc.Ensure(e.ctx, c.Cache, c.Source, e.stdout)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(e.stdout, "runsc:", path)
	}
	if !c.Image {
		return nil
	}
	images, err := image.Open(c.Cache)
	if err != nil {
		return err
	}
	return buildImage(e, images, "base", c.Mirror)
}

// buildImage builds with progress, unless the image is there and up to date.
func buildImage(e *env, images *image.Store, name, mirror string) error {
	if st := images.State(name); st.Status == image.Ready && !st.Outdated {
		_, err := fmt.Fprintf(e.stdout, "image %s: ready\n", name)
		return err
	}
	last := ""
	img, err := images.Build(e.ctx, name, image.Options{Mirror: mirror, Progress: func(phase string, percent int) {
		if line := fmt.Sprintf("image %s: %3d %% %s", name, percent, phase); phase != last {
			last = phase
			_, _ = fmt.Fprintln(e.stdout, line)
		}
	}})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "image %s: ready, %d MiB, %s\n", name, img.SizeBytes>>20, img.Digest)
	return err
}

type doctorCmd struct {
	place        `embed:""`
	JailPool     string `help:"As the server is started with it; default: as the last one was." env:"SANDGATE_JAIL_POOL" placeholder:"CIDR"`
	NetworkProbe string `hidden:"" env:"-" help:"Try the network jail here, unless this network namespace is the one named."`
}

// Run prints one line per requirement; exit 1 when one fails.
func (c *doctorCmd) Run(e *env) error {
	if c.NetworkProbe != "" {
		return probeNetwork(e.ctx, c.NetworkProbe)
	}
	binary := c.Runsc
	if binary == "" {
		binary = runsc.Path(c.Cache)
	}
	failed := false
	images, err := image.Open(c.Cache)
	if err != nil { // all else can be looked at without it
		images, failed = nil, true
		_, _ = fmt.Fprintf(e.stdout, "FAIL  %-18s %s\n      → run as root, or name a cache that is yours: --cache DIR\n", "image cache", words(err))
	}
	data, err := c.path()
	if err != nil {
		return err
	}
	probe := networkProbe()
	switch off, err := c.networkOff(data); {
	case err != nil:
		failed = true
		_, _ = fmt.Fprintf(e.stdout, "FAIL  %-18s %s\n", "network jail", words(err))
	case off:
		probe = nil
		_, _ = fmt.Fprintf(e.stdout, "off   %-18s sandboxes have no network at all: the server is started with --jail-pool off\n", "network jail")
	}
	for _, check := range runsc.Doctor(e.ctx, runsc.DoctorOptions{
		Binary: binary, Images: images, DataDir: data, Inst: installedMark(data), NetworkProbe: probe,
	}) {
		mark := "ok  "
		if !check.OK {
			mark, failed = "FAIL", true
		}
		_, _ = fmt.Fprintf(e.stdout, "%s  %-18s %s\n", mark, check.Name, check.Detail)
		if !check.OK && check.Mend != "" {
			_, _ = fmt.Fprintf(e.stdout, "      → %s\n", check.Mend)
		}
	}
	if failed {
		return exitError(1)
	}
	return nil
}

// networkOff says whether sandboxes of this installation have no network: by the flag, or else by the last server.
func (c *doctorCmd) networkOff(data string) (bool, error) {
	if c.JailPool != "" {
		return c.JailPool == jailOff, nil
	}
	last, err := (&dataDir{path: data}).lastJail()
	return last.Pool == jailOff, err
}

// installedMark reads the mark of a data directory that exists; "" otherwise.
func installedMark(data string) string {
	b, err := os.ReadFile(filepath.Join(data, instFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// findRunsc gives the runsc to use, checked.
func (p *place) findRunsc(e *env) (string, error) {
	path := p.Runsc
	if path == "" {
		path = runsc.Path(p.Cache)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return path, runsc.Check(e.ctx, path)
}

type imageCmd struct {
	Ls    imageLs    `cmd:"" help:"List images and their states."`
	Build imageBuild `cmd:"" help:"Build an image."`
	Rm    imageRm    `cmd:"" help:"Remove an image."`
}

type imageLs struct {
	place `embed:""`
}

// Run lists.
func (c *imageLs) Run(e *env) error {
	images, err := image.Open(c.Cache)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tSTATUS\tMIB\tCREATED\tDIGEST")
	for _, name := range image.Names() {
		st := images.State(name)
		img, err := images.Get(name)
		if err != nil {
			_, _ = fmt.Fprintf(w, "%s\t%s\t\t\t%s\n", name, st.Status, st.Error)
			continue
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", name, st.Status, img.SizeBytes>>20, img.CreatedAt.UTC().Format(time.RFC3339), img.Digest)
	}
	return w.Flush()
}

type imageBuild struct {
	place  `embed:""`
	Name   string `arg:"" help:"The image's name."`
	Mirror string `help:"Debian mirror to build from; default: the host's own." env:"SANDGATE_MIRROR" placeholder:"URL"`
}

// Run builds.
func (c *imageBuild) Run(e *env) error {
	images, err := image.Open(c.Cache)
	if err != nil {
		return err
	}
	return buildImage(e, images, c.Name, c.Mirror)
}

type imageRm struct {
	place `embed:""`
	Name  string `arg:"" help:"The image's name."`
}

// Run removes.
func (c *imageRm) Run(e *env) error {
	images, err := image.Open(c.Cache)
	if err != nil {
		return err
	}
	if img, err := images.Get(c.Name); err == nil {
		used, err := runsc.UsesImage(img.Rootfs)
		if err != nil {
			return err
		}
		if used {
			return fault.New(fault.Conflict, "Sandboxes on this host stand on the image %s; kill them first.", c.Name)
		}
	}
	return images.Remove(e.ctx, c.Name)
}
