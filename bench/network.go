package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The bench runs in a network namespace of its own: sandboxes get links, rules and routes, and none of that shall be made
// on the machine that people use. Beyond it lies one more namespace, which plays the internet.
const (
	inside      = "SANDGATE_BENCH_INSIDE" // set for the process that is in the namespace
	internet    = "1.2.3.4:80"
	uplinkOurs  = "9.9.9.2/24"
	uplinkTheir = "9.9.9.1/24"
	// One download takes a second or two where sandboxes are fast, and ten on a machine that is busy with other things.
	downloadBytes = 128 << 20
	downloads     = 9
	downloadTime  = 50 * time.Second // after which no other round begins, if there were three
)

// enterNamespace runs this program again in a new network namespace, and ends with it; within, it returns.
func enterNamespace() error {
	if os.Getenv(inside) != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM) // the terminal gives them to both; the inner one cleans up
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// world is what surrounds the server: an uplink, and an internet that answers with zeros.
type world struct {
	ctx    context.Context
	name   string // of the namespace that plays the internet
	server *exec.Cmd
}

func newWorld(ctx context.Context) (w *world, err error) {
	w = &world{ctx: ctx, name: "sgbench-" + strconv.Itoa(os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := w.ip(
		"link set lo up",
		"netns add "+w.name,
		"link add uplink type veth peer name uplink netns "+w.name,
		"addr add "+uplinkOurs+" dev uplink",
		"link set uplink up",
		"route add default via 9.9.9.1",
		"-n "+w.name+" link set lo up",
		"-n "+w.name+" addr add "+uplinkTheir+" dev uplink",
		"-n "+w.name+" addr add 1.2.3.4/32 dev lo",
		"-n "+w.name+" link set uplink up",
	); err != nil {
		return w, err
	}
	self, err := os.Executable()
	if err != nil {
		return w, err
	}
	w.server = exec.Command("nsenter", "--net=/run/netns/"+w.name, self)
	w.server.Env = append(os.Environ(), inside+"=internet")
	w.server.Stderr = os.Stderr
	w.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return w, w.server.Start()
}

func (w *world) ip(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.CommandContext(w.ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

func (w *world) close() error {
	if w.server != nil && w.server.Process != nil {
		_ = w.server.Process.Kill()
		_ = w.server.Wait() // killed: its exit code tells nothing
	}
	return exec.Command("ip", "netns", "del", w.name).Run()
}

// serveInternet answers every request with zeros.
func serveInternet() error {
	l, err := net.Listen("tcp", internet)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(downloadBytes))
		buf := make([]byte, chunk)
		for range downloadBytes / chunk {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	})}
	return server.Serve(l)
}

// link makes a namespace with a veth pair, an address, a default route and NAT, by hand: the network of a bare sandbox.
func (b *bare) link(n int) (namespace string, err error) {
	name, host := fmt.Sprintf("%s-%d", b.world.name, n), fmt.Sprintf("bare%d", n)
	net := fmt.Sprintf("10.%d.%d.", 100+n/256, n%256)
	if err := b.world.ip(
		"netns add "+name,
		"link add "+host+" type veth peer name eth0 netns "+name,
		"addr add "+net+"1/30 dev "+host,
		"link set "+host+" up",
		"-n "+name+" link set lo up",
		"-n "+name+" addr add "+net+"2/30 dev eth0",
		"-n "+name+" link set eth0 up",
		"-n "+name+" route add default via "+net+"1",
	); err != nil {
		return "", errors.Join(err, b.unlink(n))
	}
	return "/run/netns/" + name, nil
}

func (b *bare) unlink(n int) error {
	return exec.Command("ip", "netns", "del", fmt.Sprintf("%s-%d", b.world.name, n)).Run()
}

// masquerade lets bare sandboxes out.
func (b *bare) masquerade() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	cmd := exec.CommandContext(b.ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table ip bench { chain out { type nat hook postrouting priority 100; ip saddr 10.96.0.0/11 oifname uplink masquerade; }; }\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

const download = "curl -sS --fail --max-time 120 -o /dev/null http://" + internet + "/"

// download: bytes from the internet into a sandbox, against a bare one behind a veth pair made by hand.
func (b *bench) download() (err error) {
	id, err := b.srv.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.kill(id)) }()
	c, err := b.bare.create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.delete()) }()
	var ours, reference []float64
	start := time.Now()
	for i := range downloads {
		if i >= 3 && time.Since(start) > downloadTime {
			break
		}
		begin := time.Now()
		if err := b.srv.exec(id, download); err != nil {
			return err
		}
		ours = append(ours, downloadBytes/1e6/time.Since(begin).Seconds())
		begin = time.Now()
		if err := c.exec(download); err != nil {
			return err
		}
		reference = append(reference, downloadBytes/1e6/time.Since(begin).Seconds())
	}
	b.speed("net_download", "MB/s", ours, reference)
	return nil
}

// policyChange: one policy changed among 500 attached networks, against one that is alone, by the Go benchmark beside the
// jail.
func (b *bench) policyChange() error {
	many, err := b.benchmark("BenchmarkChange/among-500", "./sandbox/netjail", 50) // most of its time makes and removes 500
	if err != nil {
		return err
	}
	alone, err := b.benchmark("BenchmarkChange/among-1", "./sandbox/netjail", 50)
	if err != nil {
		return err
	}
	b.pair("policy_change_500", "ms", []float64{many / 1e6}, []float64{alone / 1e6})
	return nil
}
