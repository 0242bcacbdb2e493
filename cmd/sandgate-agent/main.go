// Command sandgate-agent is process 1 of every sandbox, and the bridge to it. It owns the two sockets of package agent
// and must never do more at start than open them: its start is part of every sandbox's creation.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"sandgate/sandbox/agent"
	"sandgate/sandbox/agent/guest"
)

// version is set when the binary is built.
var version = "dev"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sandgate-agent:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	word := "init"
	if len(args) > 0 {
		word, args = args[0], args[1:]
	}
	switch word {
	case "init":
		var first net.Conn
		if len(args) > 0 && args[0] == "--bridged" {
			args = args[1:]
			var err error
			if first, err = streams(); err != nil {
				return err
			}
		}
		if len(args) == 2 && args[0] == "--resolver" {
			// A sandbox whose image has no place for it runs all the same, without names.
			if err := guest.NameServer("/etc", args[1]); err != nil {
				fmt.Fprintln(os.Stderr, "sandgate-agent:", err)
			}
		}
		return serve(first)
	case "connect":
		socket := agent.MuxSocket
		if len(args) > 0 && args[0] == "--bulk" {
			socket = agent.BulkSocket
		}
		return connect(socket)
	case "name": // started from outside, to name a copy of a sandbox that had its name from process 1
		if len(args) != 1 {
			return fmt.Errorf("one name is needed")
		}
		return syscall.Sethostname([]byte(args[0]))
	case "version":
		_, err := fmt.Fprintln(out, version)
		return err
	}
	return fmt.Errorf("unknown word %q: init, connect [--bulk], name or version", word)
}

// serve answers bridges for good. The first one is there already; nil: it is not.
func serve(first net.Conn) error {
	// Process 1 must survive what people send to it. Caught and not ignored, since ignoring is inherited by children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	// One thread runs Go code at a time: what the agent does is short, and each time one thread wakes another it costs more
	// than that here. Programs it starts are not bound by this.
	runtime.GOMAXPROCS(1)
	plainSignals()
	syscall.Umask(0o022)
	dir := filepath.Dir(agent.MuxSocket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	// The multiplexed socket comes last: who finds it finds both.
	bulk, err := listen(agent.BulkSocket)
	if err != nil {
		return err
	}
	mux, err := listen(agent.MuxSocket)
	if err != nil {
		return err
	}
	server := guest.New(guest.Config{Init: os.Getpid() == 1, Env: os.Environ(), Version: version})
	if first != nil {
		go server.ServeConn(first, false)
	}
	return server.Serve(context.Background(), mux, bulk)
}

func listen(path string) (net.Listener, error) {
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return handedOver{l}, nil
}
