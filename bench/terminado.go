package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// terminado is JupyterLab's terminal server. What it needs is pinned too.
const terminadoVersion = "0.18.1"

var terminadoPackages = []string{"terminado==" + terminadoVersion, "tornado==6.6.1", "ptyprocess==0.7.0"}

//go:embed terminado.py
var terminadoServer string

// terminadoDir is a virtual environment of Python that holds nothing else; it is made once and kept.
func terminadoDir() string {
	return filepath.Join(cmp.Or(os.Getenv("SANDGATE_CACHE"), "/var/cache/sandgate"), "terminado")
}

// installTerminado makes the environment unless it is there. It needs the Python package index, so it runs before this program
// enters its own network namespace.
func installTerminado() error {
	dir := terminadoDir()
	stamp := filepath.Join(dir, ".version-"+terminadoVersion)
	if _, err := os.Stat(stamp); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "installing terminado", terminadoVersion, "in", dir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", dir},
		append([]string{filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check"}, terminadoPackages...),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// terminado is a running one, whose terminals are bash in a bare sandbox over a pty of the host.
type terminado struct {
	cmd *exec.Cmd
	url string
}

func startTerminado(ctx context.Context, c *container) (*terminado, error) {
	shell := c.b.command(nil, "exec", "-cwd", "/work", "-env", "TERM=xterm-256color", c.id, "bash")
	t := &terminado{cmd: exec.CommandContext(ctx, filepath.Join(terminadoDir(), "bin", "python"), append([]string{"-c", terminadoServer}, shell.Args...)...)}
	t.cmd.Stderr = os.Stderr
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	in := bufio.NewScanner(out)
	if !in.Scan() {
		return nil, errors.Join(errors.New("terminado did not start"), t.close())
	}
	t.url = "ws://127.0.0.1:" + in.Text() + "/ws"
	return t, nil
}

// close ends it; its terminals end with their pty.
func (t *terminado) close() error {
	err := t.cmd.Process.Kill()
	_ = t.cmd.Wait() // it was killed
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
