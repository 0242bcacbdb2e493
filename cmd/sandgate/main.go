// Command sandgate is the whole product: the server, its preparation, and the tools beside it. It only parses flags and
// wires packages together; it must hold no rule of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/alecthomas/kong"

	"sandgate/internal/fault"
	"sandgate/sandbox/netjail"
)

// version is set by the Makefile (-ldflags "-X main.version=…").
var version = "dev"

// cli is the command line. Every flag has an environment variable and a key of the same name in the config file.
type cli struct {
	Config kong.ConfigFlag `help:"JSON file with values for the flags, by their names." env:"SANDGATE_CONFIG" placeholder:"FILE"`

	Serve     serveCmd     `cmd:"" help:"Serve the dashboard and the REST API."`
	Setup     setupCmd     `cmd:"" help:"Prepare this host: runsc and the base image. Safe to repeat."`
	Doctor    doctorCmd    `cmd:"" help:"Check every requirement and say how to mend what fails."`
	User      userCmd      `cmd:"" help:"People with an account."`
	Workspace workspaceCmd `cmd:"" help:"Workspaces and who is in them."`
	Key       keyCmd       `cmd:"" help:"API keys."`
	Sandbox   sandboxCmd   `cmd:"" help:"Sandboxes on this host; works with the server down too."`
	Image     imageCmd     `cmd:"" help:"Root filesystems of sandboxes."`
	Audit     auditCmd     `cmd:"" help:"The record of what happened."`
	Backup    backupCmd    `cmd:"" help:"Write database and keys into one file, while the server runs."`
	Restore   restoreCmd   `cmd:"" help:"Put a backup into a new data directory."`
	Run       runCmd       `cmd:"" help:"Run a command in a sandbox over REST; exits with its code."`
	Sh        shCmd        `cmd:"" help:"Open a terminal in a sandbox."`
	Cp        cpCmd        `cmd:"" help:"Copy a file into or out of a sandbox."`
	Ls        lsCmd        `cmd:"" help:"List sandboxes over REST."`
	MCP       mcpCmd       `cmd:"" name:"mcp" help:"Speak the Model Context Protocol on stdin and stdout, over the server's /mcp."`
	Version   versionCmd   `cmd:"" help:"Print the version."`
}

// env is what commands may touch of the process, so that tests can stand in for it.
type env struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// exitError carries an exit code that is no failure of ours.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	var c cli
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("sandgate"),
		kong.Description("A self-hosted gate to gVisor sandboxes."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { exited = n; panic(exitError(n)) }),
		kong.Configuration(kong.JSON),
		kong.Vars{
			"jail_pool": netjail.DefaultPool.String(), "jail_connections": strconv.Itoa(netjail.DefaultLimits.Connections),
			"jail_rate": strconv.FormatInt(netjail.DefaultLimits.BytesPerSecond>>20, 10),
		},
		kong.ValueFormatter(describe),
		kong.UsageOnError(),
	)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sandgate:", err)
		return 2
	}
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(exitError); !ok || exited < 0 {
				panic(p)
			}
			code = exited // --help and the like
		}
	}()
	kctx, err := parser.Parse(args)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sandgate:", err)
		return 2
	}
	err = kctx.Run(&env{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr})
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	default:
		_, _ = fmt.Fprintln(stderr, "sandgate:", words(err))
		return 1
	}
}

// words prefers the public sentence, and gives operators the cause behind it too: they own the host.
func words(err error) string {
	if fault.Is(err, fault.Internal) {
		return err.Error()
	}
	if cause := errors.Unwrap(err); cause != nil {
		return fault.Public(err) + " (" + cause.Error() + ")"
	}
	return fault.Public(err)
}

// describe shows a flag's default, environment variable and config key behind its help.
func describe(v *kong.Value) string {
	if v.Flag == nil || len(v.Flag.Envs) == 0 {
		return v.Help
	}
	usual := ""
	if v.HasDefault {
		usual = "default " + v.Default + ", "
	}
	return fmt.Sprintf("%s (%s$%s, config %q)", v.Help, usual, v.Flag.Envs[0], v.Name)
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(e *env) error {
	_, err := fmt.Fprintln(e.stdout, "sandgate", version)
	return err
}
