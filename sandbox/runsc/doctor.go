package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandgate/internal/fault"
	"sandgate/sandbox/image"
)

// A Finding is one requirement of the host: whether it holds, what was seen, and what mends it when it does not.
type Finding struct {
	Name   string
	OK     bool
	Detail string
	Mend   string
}

// DoctorOptions say what is looked at.
type DoctorOptions struct {
	Binary  string // runsc
	Images  *image.Store
	DataDir string
	Inst    string // may be "" when there is no data directory yet
	// NetworkProbe is a command line that tries the network jail where it is started; none: that is not looked at.
	NetworkProbe []string
}

// Doctor looks at everything that sandboxes need of this host and changes nothing.
func Doctor(ctx context.Context, o DoctorOptions) []Finding {
	out := []Finding{
		finding("root", rootCheck(), "run as root, e.g. with sudo"),
		finding("linux kernel", kernelCheck(), "boot Linux 5.14 or later on x86_64 or arm64"),
		finding("cgroup controllers", cgroupCheck(o.Inst), "mount the memory, cpu and pids controllers (v1), or boot with cgroup v2 mounted writable at /sys/fs/cgroup"),
		finding("user namespaces", userNamespaceCheck(), "sysctl user.max_user_namespaces=15000"),
		finding("process tracing", ptraceCheck(), "sysctl kernel.yama.ptrace_scope=1"),
		finding("runsc", Check(ctx, o.Binary), "sandgate setup"),
	}
	if os.Geteuid() != 0 {
		out = append(out, finding("without root", rootlessCheck(ctx, o.Binary, nil), ""))
	}
	if len(o.NetworkProbe) > 0 {
		out = append(out, finding("network jail", networkCheck(ctx, o.NetworkProbe),
			"load the kernel modules nf_tables, nf_conntrack, nfnetlink_log, nft_fib and veth, or serve with --jail-pool off"))
	}
	tools := toolCheck("mmdebstrap", "unshare", "chroot")
	out = append(out, finding("image builder", tools, "apt-get install "+strings.Join(image.RequiredPackages(), " ")))
	if o.Images != nil {
		for _, name := range image.Names() {
			out = append(out, imageFinding(o.Images.State(name)))
		}
		out = append(out, finding("way to the images", passable(o.Images.Dir()), "chmod o+x the directories above, or set SANDGATE_CACHE to another directory"))
		out = append(out, finding("disk space for images", spaceCheck(o.Images.Dir(), image.MinFreeBytes), "free some space, or set SANDGATE_CACHE to a larger disk"))
	}
	if o.DataDir != "" {
		out = append(out, finding("disk space for sandboxes", spaceCheck(o.DataDir, 4<<30), "free some space, or use another data directory"))
	}
	return out
}

func finding(name string, err error, mend string) Finding {
	if f, ok := errors.AsType[okDetail](err); ok {
		return Finding{Name: name, OK: true, Detail: string(f)}
	}
	if err == nil {
		return Finding{Name: name, OK: true}
	}
	detail := err.Error()
	if _, ok := errors.AsType[*fault.Error](err); ok {
		detail = fault.Public(err)
	}
	return Finding{Name: name, Detail: detail, Mend: mend}
}

// okDetail carries what a check saw when all is well.
type okDetail string

func (d okDetail) Error() string { return string(d) }

func imageFinding(st image.State) Finding {
	f := Finding{Name: "image " + st.Name, OK: st.Status == image.Ready, Detail: string(st.Status), Mend: "sandgate image build " + st.Name}
	switch {
	case st.Status == image.Building:
		f.Detail, f.Mend = fmt.Sprintf("being built: %d %%, %s", st.Percent, st.Phase), "wait"
	case st.Status == image.Failed:
		f.Detail = st.Error
	case st.Outdated:
		f.Detail = "ready, but its recipe has changed: \"sandgate image build " + st.Name + "\" renews it"
	}
	if f.OK {
		f.Mend = ""
	}
	return f
}

// networkCheck runs a probe in a network namespace that goes with it.
func networkCheck(ctx context.Context, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if said := strings.TrimPrefix(strings.TrimSpace(string(out)), "sandgate: "); err != nil && said != "" {
		return errors.New(said)
	}
	return err
}

func rootCheck() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("running as user %d", uid)
	}
	return nil
}

func kernelCheck() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	release := unix.ByteSliceToString(u.Release[:])
	f := strings.FieldsFunc(release, func(r rune) bool { return r == '.' || r == '-' })
	if len(f) < 2 {
		return fmt.Errorf("kernel %q", release)
	}
	major, _ := strconv.Atoi(f[0])
	minor, _ := strconv.Atoi(f[1])
	if major < 5 || major == 5 && minor < 14 {
		return fmt.Errorf("kernel %s", release)
	}
	return okDetail(release)
}

func cgroupCheck(inst string) error {
	c, err := detectCgroups(inst)
	if err != nil {
		return err
	}
	for _, h := range c.mounts {
		if unix.Access(h.dir, unix.W_OK) != nil {
			return fmt.Errorf("%s is not writable", h.dir)
		}
	}
	if c.v2 {
		return okDetail("version 2")
	}
	return okDetail("version 1")
}

func userNamespaceCheck() error {
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || n < 64 {
		return fmt.Errorf("at most %s", strings.TrimSpace(string(b)))
	}
	return nil
}

// ptraceCheck: the systrap platform attaches to its own children.
func ptraceCheck() error {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return nil // no Yama, no restriction
	}
	if s := strings.TrimSpace(string(b)); s != "0" && s != "1" && s != "2" {
		return fmt.Errorf("kernel.yama.ptrace_scope is %s", s)
	}
	return nil
}

func toolCheck(tools ...string) error {
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			missing = append(missing, t)
		}
	}
	if missing != nil {
		return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
	}
	return nil
}

func spaceCheck(dir string, want int64) error {
	free := image.FreeBytes(dir)
	if free < 0 {
		return okDetail("not known: " + dir + " is not there yet")
	}
	if free < want {
		return fmt.Errorf("%d MiB free in %s, %d wanted", free>>20, dir, want>>20)
	}
	return okDetail(fmt.Sprintf("%d GiB free", free>>30))
}
