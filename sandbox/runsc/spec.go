package runsc

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/image"
)

// idCount is how many user and group ids a sandbox has: 0 to 65535 inside.
const idCount = 65536

// capabilities are what root inside holds: those that a container engine usually gives, enough for apt, pip, sudo, su
// and chown. gVisor's own kernel keeps them; the processes on the host hold none of them outside their user namespace.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// namingRight is what setting a host name needs.
const namingRight = "CAP_SYS_ADMIN"

var hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// oomScore makes sandboxes the first to be killed for the host's memory; the cgroup's own limit knows nobody else.
var oomScore = 500

// ociSpec is the sandbox's config.json. Annotations stay empty, because runsc takes flags from them;
// filesSteps sets one, of ours alone.
func (r *Runtime) ociSpec(spec sandbox.Spec, rootfs string) *specs.Spec {
	host, held := spec.Hostname, capabilities
	if host == "" {
		// To be named, which process 1 does before it starts anything, and then drops this from its bounding set too.
		held = append(slices.Clone(capabilities), namingRight)
	}
	if !hostnamePattern.MatchString(host) {
		host = "sandbox"
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: image.OwnerShift, Size: idCount}}
	return &specs.Spec{
		Version: "1.2.1",
		Process: &specs.Process{
			Args: agentArgs(spec),
			Cwd:  "/",
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root", "TERM=xterm-256color",
			},
			User: specs.User{UID: 0, GID: 0},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: held, Effective: held, Permitted: held,
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: 8192, Hard: 65536},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
			// When the host itself runs out of memory, a sandbox goes before the server and before what else is there.
			OOMScoreAdj: &oomScore,
			// sudo and su must work inside. The host's processes of a sandbox have no-new-privileges all the same.
			NoNewPrivileges: false,
		},
		// Read-only for the gofer; the overlay above it is writable and belongs to this sandbox alone.
		Root:     &specs.Root{Path: rootfs, Readonly: false},
		Hostname: host,
		Mounts:   r.mounts(spec),
		Linux: &specs.Linux{
			CgroupsPath: r.cg.path(r.name(spec.ID)),
			UIDMappings: ids,
			GIDMappings: ids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace, Path: spec.Network.Namespace},
			},
		},
	}
}

// agentArgs start process 1, which takes its streams for the first bridge and writes the resolver's address where programs
// inside look for it.
func agentArgs(spec sandbox.Spec) []string {
	args := []string{agent.GuestPath, "init", "--bridged"}
	if spec.Network.Resolver.IsValid() {
		args = append(args, "--resolver", spec.Network.Resolver.String())
	}
	return args
}

// mounts gives every writable place in memory a size. A number of files cannot be given: this runsc takes "nr_inodes" in a
// configuration and drops it. An empty file costs about 2 KiB of the sandbox's memory, wherever it lies (the root too), so
// the memory's limit bounds their number. /dev takes no size by configuration; what is written there counts as memory, too.
func (r *Runtime) mounts(spec sandbox.Spec) []specs.Mount {
	half := max(32, spec.Resources.MemoryMB/2)
	tmpfs := func(dest, mode string, mb int64) specs.Mount {
		return specs.Mount{Destination: dest, Type: "tmpfs", Source: "tmpfs", Options: []string{
			"nosuid", "nodev", "mode=" + mode, fmt.Sprintf("size=%dm", mb),
		}}
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		tmpfs("/tmp", "1777", half),
		tmpfs("/dev/shm", "1777", half),
		tmpfs("/run", "0755", 32),
		tmpfs("/.sandgate-run", "0700", 1),
		{Destination: agent.GuestPath, Type: "bind", Source: r.agent, Options: []string{"bind", "ro", "nosuid", "nodev"}},
	}
}
