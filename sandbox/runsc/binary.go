package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
)

// Version is the runsc that Sandgate is made for and builds: the date is the one of the pinned module in tools/runsc.
const Version = "release-20260905.0"

// MinDate is the oldest runsc that is accepted, as in the names of gVisor's releases: flags and state files that this
// package relies on are there since.
const MinDate = "20260515"

// versionLimit is a variable for tests only.
var versionLimit = 5 * time.Second

var releasePattern = regexp.MustCompile(`^runsc version release-(\d{8})\.\d+`)

// Check runs "runsc --version" and refuses a program that does not answer in 5 s, is no runsc, or is older than MinDate.
func Check(ctx context.Context, path string) error {
	first, err := saidVersion(ctx, path)
	const mend = "\"sandgate setup\" builds the right one."
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Internal, "%s did not say its version within %s. %s", path, versionLimit, mend)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return fault.Wrap(err, fault.Internal, "There is no runsc at %s. %s", path, mend)
	case err != nil:
		return fault.Wrap(err, fault.Internal, "%s cannot be run (%v). %s", path, err, mend)
	}
	m := releasePattern.FindStringSubmatch(first)
	if m == nil {
		return fault.New(fault.Internal, "%s does not say a release of gVisor (%.80q), so its age is unknown. %s", path, first, mend)
	}
	if m[1] < MinDate {
		return fault.New(fault.Internal, "%s is release %s of gVisor; %s or later is needed. %s", path, m[1], MinDate, mend)
	}
	return nil
}

// saidVersion gives the first line of "runsc --version"; context.DeadlineExceeded when it does not come in time.
func saidVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	cmd.Env = bareEnv()
	var out head
	cmd.Stdout = &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	return first, err
}

// bareEnv is the environment of every runsc: nothing of ours, which could change what it does.
func bareEnv() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"} }

// Path is where Ensure keeps the program.
func Path(cacheDir string) string { return filepath.Join(cacheDir, "runsc-"+Version, "runsc") }

// Ensure gives the path of a checked runsc in the cache and builds it first when it is missing. srcDir is tools/runsc of
// the source tree; "" (no source beside the program) makes a missing runsc an error. progress gets lines for people.
func Ensure(ctx context.Context, cacheDir, srcDir string, progress io.Writer) (string, error) {
	path := Path(cacheDir)
	if err := Check(ctx, path); err == nil {
		return path, nil
	} else if srcDir == "" {
		return "", err
	}
	return Build(ctx, cacheDir, srcDir, progress)
}

// Build compiles runsc from its pinned source into the cache, atomically; two builders at once share one build.
func Build(ctx context.Context, cacheDir, srcDir string, progress io.Writer) (string, error) {
	path := Path(cacheDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("build runsc: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(path), ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("build runsc: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := pollLock(ctx, lock); err != nil {
		return "", fmt.Errorf("build runsc: %w", err)
	}
	if Check(ctx, path) == nil {
		return path, nil // somebody else built it meanwhile
	}
	tmp := path + ".new"
	defer func() { _ = os.Remove(tmp) }()
	_, _ = fmt.Fprintf(progress, "building runsc %s from source (1 to 3 minutes, once)\n", Version)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath",
		"-ldflags=-s -w -X gvisor.dev/gvisor/runsc/version.version="+Version, "-o", tmp, "gvisor.dev/gvisor/runsc")
	cmd.Dir = srcDir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux")
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		text := out.String()
		return "", fault.Wrap(err, fault.Internal, "Building runsc failed (%v):\n%s", err, text[max(0, len(text)-4096):])
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("build runsc: %w", err)
	}
	if err := Check(ctx, tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("build runsc: %w", err)
	}
	_, _ = fmt.Fprintf(progress, "runsc is in %s\n", path)
	return path, nil
}

// pollLock takes an exclusive file lock without giving up on ctx.
func pollLock(ctx context.Context, f *os.File) error {
	return poll(ctx, time.Hour, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
}

// head keeps the first bytes of what a program says; the rest is dropped.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, p[:min(len(p), 1024-len(h.b))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.b)
}
