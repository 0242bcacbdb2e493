package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scratch is a directory inside the image that exists while it is built: the host's network settings for pip.
const scratch = "/.sandgate-build"

// run runs a builder in process and mount namespaces of its own: when it ends, or this process dies, nothing it started
// lives on and none of its mounts stay. The output goes to out; stdin is empty.
func run(ctx context.Context, out io.Writer, env []string, argv ...string) error {
	args := append([]string{"--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc", "--"}, argv...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error, 1)
	go func() {
		// The death signal follows the thread that started the child, so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		result <- cmd.Run()
	}()
	err := <-result
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(argv[0]), err)
	}
	return nil
}

// debootstrap unpacks and configures the packages into rootfs.
func debootstrap(ctx context.Context, def Definition, mirror, rootfs string, out io.Writer) error {
	argv := []string{
		"mmdebstrap", "--mode=root", "--variant=" + def.Variant, "--format=directory",
		"--aptopt=Acquire::Languages \"none\"",
		"--aptopt=APT::Install-Recommends \"false\"",
		"--include=" + strings.Join(def.Packages, ","),
	}
	for _, p := range []string{"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*"} {
		argv = append(argv, "--dpkgopt=path-exclude="+p)
	}
	argv = append(argv, "--dpkgopt=path-include=/usr/share/doc/*/copyright", "--dpkgopt=force-unsafe-io")
	argv = append(argv, def.Suite, rootfs)
	argv = append(argv, sources(def.Suite, mirror, "/etc/apt")...)
	if def.Variant == "custom" {
		argv[2] = "--variant=extract"
	}
	return run(ctx, out, hostEnv(), argv...)
}

// hostEnv is the environment for builders: what reaches the network, and little else.
func hostEnv() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		switch strings.ToLower(k) {
		case "http_proxy", "https_proxy", "no_proxy", "all_proxy":
			env = append(env, kv)
		}
	}
	return env
}

// installPython runs pip inside the image with the host's pip configuration, proxy, resolver and certificates. Only
// wheels are taken: no package's build script runs on the host's network as root.
func installPython(ctx context.Context, rootfs string, packages []string, out io.Writer) (err error) {
	dir := filepath.Join(rootfs, scratch)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	env := append(hostEnv(), "TMPDIR="+scratch, "PIP_CONFIG_FILE="+scratch+"/pip.conf")
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		// Paths of the host mean nothing inside; certificates are copied in below.
		if strings.HasPrefix(k, "PIP_") && !strings.Contains(v, "/") || k == "PIP_INDEX_URL" || k == "PIP_EXTRA_INDEX_URL" || k == "PIP_TRUSTED_HOST" {
			env = append(env, kv)
		}
	}
	conf := []byte{}
	for _, name := range []string{os.Getenv("PIP_CONFIG_FILE"), "/etc/pip.conf", filepath.Join(os.Getenv("HOME"), ".config/pip/pip.conf"), filepath.Join(os.Getenv("HOME"), ".pip/pip.conf")} {
		if b, err := os.ReadFile(name); err == nil && name != "" {
			conf = append(dropLocalPaths(b), '\n')
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pip.conf"), conf, 0o600); err != nil {
		return err
	}
	if bundle := hostCertificates(); bundle != nil {
		if err := os.WriteFile(filepath.Join(dir, "ca.crt"), bundle, 0o600); err != nil {
			return err
		}
		for _, k := range []string{"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"} {
			env = append(env, k+"="+scratch+"/ca.crt")
		}
	}
	if b, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		if err := replaceFile(filepath.Join(rootfs, "etc/resolv.conf"), b, 0o644); err != nil {
			return err
		}
	}
	argv := []string{
		"chroot", rootfs, "python3", "-m", "pip", "install", "--break-system-packages", "--root-user-action=ignore",
		"--no-cache-dir", "--no-input", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off",
	}
	return run(ctx, out, env, append(argv, packages...)...)
}

// dropLocalPaths removes the settings of a pip configuration that name files of the host.
func dropLocalPaths(conf []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(conf)) {
		k, v, _ := strings.Cut(line, "=")
		if k = strings.TrimSpace(k); k == "cert" || k == "client-cert" || k == "cache-dir" || k == "log" || k == "find-links" || strings.HasPrefix(strings.TrimSpace(v), "/") {
			continue
		}
		out.WriteString(line)
	}
	return []byte(out.String())
}

func hostCertificates() []byte {
	for _, name := range []string{os.Getenv("PIP_CERT"), os.Getenv("SSL_CERT_FILE"), os.Getenv("REQUESTS_CA_BUNDLE"), "/etc/ssl/certs/ca-certificates.crt"} {
		if name == "" {
			continue
		}
		if b, err := os.ReadFile(name); err == nil {
			return b
		}
	}
	return nil
}

// replaceFile writes a file of the image, never through a symlink that a package left there.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// finish makes the image neutral and ready for sandboxes: nothing of the host in it, mount points in place.
func finish(ctx context.Context, rootfs string, def Definition, out io.Writer) error {
	at := func(p string) string { return filepath.Join(rootfs, p) }
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{"etc", 0o755},
		{"dev", 0o755},
		{"proc", 0o555},
		{"sys", 0o555},
		{"run", 0o755},
		{"root", 0o700},
		{"tmp", 0o1777},
		{"var/tmp", 0o1777},
		{"work", 0o755},
		{".sandgate", 0o755},
		{".sandgate-run", 0o700},
		{"usr/bin", 0o755},
		{"usr/local/bin", 0o755},
	} {
		if err := os.MkdirAll(at(d.path), d.mode.Perm()); err != nil {
			return err
		}
		if err := unix.Chmod(at(d.path), uint32(d.mode)); err != nil {
			return err
		}
	}
	// The mount point of the agent's binary: a file, so that the mount needs to make nothing in the image.
	if err := replaceFile(at(".sandgate/agent"), nil, 0o755); err != nil {
		return err
	}
	if def.Variant == "custom" {
		if err := finishTiny(ctx, rootfs, out); err != nil {
			return err
		}
	}
	for path, text := range map[string]string{
		"etc/resolv.conf": "# Written by Sandgate for each sandbox that has a network.\n",
		"etc/hostname":    "sandbox\n",
		"etc/hosts":       "127.0.0.1\tlocalhost sandbox\n::1\t\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/environment": "LANG=C.UTF-8\n",
		"etc/machine-id":  "",
	} {
		if err := replaceFile(at(path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// Plain "pip install" shall work: the sandbox is the virtual environment.
	managed, _ := filepath.Glob(at("usr/lib/python3*/EXTERNALLY-MANAGED"))
	// Device nodes in the image would be the host's; the runtime mounts a /dev of its own over the directory.
	nodes, _ := filepath.Glob(at("dev/*"))
	junk := append(managed, nodes...)
	for _, p := range []string{"etc/apt/apt.conf.d/99mmdebstrap", "root/.cache", "root/.config"} {
		junk = append(junk, at(p))
	}
	for _, pattern := range []string{"var/cache/apt/*.bin", "var/log/*.log", "var/log/apt/*"} {
		more, _ := filepath.Glob(at(pattern))
		junk = append(junk, more...)
	}
	for _, p := range junk {
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	return stripCredentials(at("etc/apt/sources.list"))
}

// stripCredentials removes user:password@ of a mirror from what stays in the image.
func stripCredentials(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	words := strings.Split(string(b), " ")
	for i, w := range words {
		scheme, rest, ok := strings.Cut(w, "://")
		if !ok {
			continue
		}
		host, tail, _ := strings.Cut(rest, "/")
		if j := strings.LastIndexByte(host, '@'); j >= 0 {
			words[i] = scheme + "://" + host[j+1:] + "/" + tail
		}
	}
	return replaceFile(path, []byte(strings.Join(words, " ")), 0o644)
}

// finishTiny gives an image that was only unpacked a shell, the usual tools and a root user.
func finishTiny(ctx context.Context, rootfs string, out io.Writer) error {
	for _, link := range []string{"bin", "sbin"} {
		if err := os.Symlink("usr/bin", filepath.Join(rootfs, link)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
		"etc/group":  "root:x:0:\nnogroup:x:65534:\n",
	} {
		if err := replaceFile(filepath.Join(rootfs, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return run(ctx, out, hostEnv(), "chroot", rootfs, "/usr/bin/busybox", "--install", "-s", "/usr/bin")
}

// installed reads the names and versions of the packages in the image.
func installed(rootfs string) ([]string, error) {
	f, err := os.Open(filepath.Join(rootfs, "var/lib/dpkg/status"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []string
	name := ""
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "Package: "); ok {
			name = v
		} else if v, ok := strings.CutPrefix(sc.Text(), "Version: "); ok && name != "" {
			out = append(out, name+" "+v)
			name = ""
		}
	}
	sort.Strings(out)
	return out, sc.Err()
}

// shiftOwners adds OwnerShift to every owner, once: a file with two names is met twice. chown clears the setuid and
// setgid bits, which sudo and su need, so modes are put back. It gives the size of the tree in bytes on disk.
func shiftOwners(ctx context.Context, rootfs string) (size int64, err error) {
	err = filepath.WalkDir(rootfs, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		if st.Uid >= OwnerShift || st.Gid >= OwnerShift {
			return nil
		}
		size += st.Blocks * 512
		if err := unix.Lchown(path, int(st.Uid)+OwnerShift, int(st.Gid)+OwnerShift); err != nil {
			return fmt.Errorf("chown %s: %w", path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			if err := unix.Chmod(path, st.Mode&0o7777); err != nil {
				return fmt.Errorf("chmod %s: %w", path, err)
			}
		}
		return nil
	})
	return size, err
}
