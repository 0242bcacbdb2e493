package sandboxtest

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/effect"
)

func (f *Fake) running(id sandbox.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[id]; b == nil || !b.started || isClosed(b.dead) {
		return fault.New(fault.NotFound, "Sandbox not found")
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Upper implements sandbox.Inspector: the working directory of the agent, under its name on the host.
func (f *Fake) Upper(_ context.Context, id sandbox.ID, w io.Writer) error {
	if err := f.running(id); err != nil {
		return err
	}
	dir := filepath.Join(f.o.Dir, string(id))
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = "." + path
		if err := archive.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("files of %s: %w", id, err)
	}
	return archive.Close()
}

// Scratch implements sandbox.Inspector.
func (*Fake) Scratch() []string { return nil }

// Lower implements sandbox.Inspector: there is no image.
func (f *Fake) Lower(_ context.Context, id sandbox.ID) (effect.Base, func() error, error) {
	return effect.Base{}, func() error { return nil }, f.running(id)
}

// Processes implements sandbox.Inspector: what runs is not told from what runs on the host.
func (f *Fake) Processes(_ context.Context, id sandbox.ID) ([]sandbox.Process, error) {
	return nil, f.running(id)
}
