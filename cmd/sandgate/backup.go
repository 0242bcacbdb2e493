package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
)

// keptFiles are the small files of a data directory that a backup holds beside the database. audit.head comes first: an
// anchor that is older than the record is true, a younger one would say that its end was cut off.
var keptFiles = []string{"audit.head", "inst", "secret.key", "sealing.key", "jail.json"}

const databaseFile = "sandgate.db"

type backupCmd struct {
	place `embed:""`
	File  string `arg:"" help:"File to write; - is standard output. It holds keys: keep it as you keep them."`
}

// Run writes the database and the keys into one tar file, while a server may run.
func (c *backupCmd) Run(e *env) error {
	ps, err := c.people(e)
	if err != nil {
		return err
	}
	defer ps.close()
	if err := ps.audit.Note(e.ctx, audit.Event{ActorKind: auth.System, Actor: "operator", Action: "data.backup", Target: c.File, Outcome: audit.OK}); err != nil {
		return err
	}
	if c.File == "-" {
		return ps.backup(e, e.stdout)
	}
	// Beside its place first: what is there under the name is always whole.
	out, err := os.CreateTemp(filepath.Dir(c.File), ".backup-*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(out.Name()) }()
	if err := errors.Join(ps.backup(e, out), out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), c.File)
}

func (ps *parts) backup(e *env, to io.Writer) error {
	tmp, err := os.MkdirTemp(ps.dir.path, ".backup-") // 0700, on a disk that has room for the database
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	w := tar.NewWriter(to)
	for _, name := range keptFiles {
		if err := addFile(w, name, filepath.Join(ps.dir.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := ps.store.Backup(e.ctx, filepath.Join(tmp, databaseFile)); err != nil {
		return err
	}
	return errors.Join(addFile(w, databaseFile, filepath.Join(tmp, databaseFile)), w.Close())
}

func addFile(w *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: fi.Size(), ModTime: time.Now()}); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, fi.Size())
	return err
}

type restoreCmd struct {
	place `embed:""`
	File  string `arg:"" help:"File that \"sandgate backup\" wrote; - is standard input."`
}

// Run puts a backup into a data directory that is empty or not there yet. Sandboxes themselves are in no backup: those
// that ran are shown as ended by the host when the server starts.
func (c *restoreCmd) Run(e *env) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	in := e.stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: restore into a new directory, so that nothing is lost (--data DIR)", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Beside its place first: half a data directory would be taken for a whole one.
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".restore-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := unpackBackup(in, tmp); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	c.Data = path
	ps, err := c.people(e) // brings the schema up to date, and sees that the keys fit
	if err != nil {
		return err
	}
	defer ps.close()
	if err := ps.audit.Note(e.ctx, audit.Event{ActorKind: auth.System, Actor: "operator", Action: "data.restore", Target: c.File, Outcome: audit.OK}); err != nil {
		return err
	}
	_, err = fmt.Fprintln(e.stdout, "restored to", path)
	return err
}

func unpackBackup(in io.Reader, dir string) error {
	known := map[string]bool{databaseFile: true}
	for _, name := range keptFiles {
		known[name] = true
	}
	seen := map[string]bool{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("this is no backup of Sandgate's: %w", err)
		}
		if !known[h.Name] || seen[h.Name] {
			return fmt.Errorf("this is no backup of Sandgate's: %q is in it", h.Name)
		}
		seen[h.Name] = true
		f, err := os.OpenFile(filepath.Join(dir, h.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	for _, name := range []string{databaseFile, "inst", "secret.key", "sealing.key"} {
		if !seen[name] {
			return fmt.Errorf("this backup is not whole: %s is missing", name)
		}
	}
	return nil
}
