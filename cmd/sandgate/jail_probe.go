package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"sandgate/sandbox"
	"sandgate/sandbox/netjail"
)

const ownNetwork = "/proc/self/ns/net"

// networkProbe is the command line that tries the network jail in the network namespace that it is started in. It refuses
// the one that this process is in: people use it.
func networkProbe() []string {
	self, err := os.Executable()
	here, nerr := os.Readlink(ownNetwork)
	if err != nil || nerr != nil {
		return nil
	}
	return []string{self, "doctor", "--network-probe", here}
}

// probeNetwork makes a jail with one sandbox in it, and takes both away; not in the namespace called not.
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
