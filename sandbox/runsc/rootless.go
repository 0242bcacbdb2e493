package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// rootlessLimit bounds the trial: a platform that does not work may hang for ever.
const rootlessLimit = 20 * time.Second

// lostWithoutRoot is what a sandbox would lack that is started by somebody who is not root.
const lostWithoutRoot = "no limits of memory, CPU and processes (cgroups belong to root), no network jail (neither do namespaces with a way out, nor the packet filter), " +
	"and one user inside, so no package manager, sudo or su"

// rootlessCheck tries gVisor as an unprivileged user, and says what would be lost by it. cred is who tries; nil: whoever runs
// this process.
func rootlessCheck(ctx context.Context, binary string, cred *syscall.Credential) error {
	if _, err := os.Stat(binary); err != nil {
		return okDetail("not tried: there is no runsc yet. Sandgate does not run without root: " + lostWithoutRoot)
	}
	took, err := tryRootless(ctx, binary, cred)
	if err != nil {
		return okDetail(fmt.Sprintf("gVisor alone does not run here without root (%s). Sandgate would not either way: %s", err, lostWithoutRoot))
	}
	return okDetail(fmt.Sprintf("gVisor alone runs here without root (tried, %d ms), but Sandgate does not use that: %s", took.Milliseconds(), lostWithoutRoot))
}

// tryRootless runs one program in a sandbox of its own and takes everything of it away.
func tryRootless(ctx context.Context, binary string, cred *syscall.Credential) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "sandgate-rootless-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, rootlessLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--rootless", "--network=none", "--ignore-cgroups", "--platform=systrap", "--directfs=false",
		"--root="+filepath.Join(dir, "root"), "do", "/bin/echo", "well")
	cmd.Dir = "/"
	cmd.Env = append(bareEnv(), "TMPDIR="+dir, "XDG_RUNTIME_DIR="+dir)
	said := &head{}
	cmd.Stderr = said
	out := &head{}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	// In a group of its own, so that all of it can be ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: cred}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	begin := time.Now()
	err = cmd.Run()
	took := time.Since(begin)
	switch {
	case ctx.Err() != nil:
		return took, fmt.Errorf("no end after %s", rootlessLimit)
	case err != nil:
		last := said.String()
		if i := strings.LastIndexByte(strings.TrimSpace(last), '\n'); i >= 0 {
			last = last[i+1:]
		}
		return took, fmt.Errorf("%w: %s", err, strings.TrimSpace(last))
	case strings.TrimSpace(out.String()) != "well":
		return took, errors.New("it said nothing")
	}
	return took, nil
}
