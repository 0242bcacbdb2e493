package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail"
	"sandgate/sandbox/runsc"
)

const probeTime = 20 * time.Second

// networkFinding tries the network jail without touching this host's network: it starts this program once more, in a
// network namespace that goes with it.
func networkFinding(ctx context.Context) runsc.Finding {
	f := runsc.Finding{Name: "network jail", Mend: "load the kernel's nf_tables, nf_conntrack, nfnetlink_log, nft_fib and veth modules, or serve with --jail-pool off"}
	self, err := os.Executable()
	here, nerr := os.Readlink(ownNetwork)
	if err := errors.Join(err, nerr); err != nil {
		f.Detail = err.Error()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "doctor", "--network-probe", here)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.Detail = strings.TrimPrefix(strings.TrimSpace(string(out)), "sandgate: ")
		if f.Detail == "" {
			f.Detail = err.Error()
		}
		return f
	}
	f.OK, f.Mend = true, ""
	return f
}

const ownNetwork = "/proc/self/ns/net"

// probeNetwork makes a jail with one sandbox in it, and takes both away. It refuses to do so in the namespace called not,
// which people use.
func probeNetwork(ctx context.Context, not string) (err error) {
	here, err := os.Readlink(ownNetwork)
	if err != nil {
		return fmt.Errorf("read the network namespace: %w", err)
	}
	if here == not {
		return errors.New("the probe needs a network namespace of its own")
	}
	jail, err := netjail.New(netjail.Options{Inst: "prob"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jail.Close()) }()
	id := sandbox.NewID()
	_, err = jail.Attach(ctx, id, sandbox.NetworkPolicy{Mode: sandbox.NetworkPublic}, func(string) error { return nil })
	return errors.Join(err, jail.Detach(ctx, id))
}
