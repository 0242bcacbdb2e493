package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	connectFor = 10 * time.Second
	// handOver is the byte that the descriptors of a bridge come with.
	handOver = 'F'
)

// connect hands its stdin and stdout to process 1 over a socket, so that no byte has to pass through here, and waits until
// process 1 is done with them. It holds neither any longer: the end of the host's pipes is seen there.
func connect(path string) error {
	wake()
	fd, err := dial(path)
	if err != nil {
		return err
	}
	if err := syscall.Sendmsg(fd, []byte{handOver}, syscall.UnixRights(0, 1), nil, 0); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	_, _ = syscall.Close(0), syscall.Close(1)
	for {
		var b [1]byte
		switch n, err := syscall.Read(fd, b[:]); {
		case err == syscall.EINTR:
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case n == 0:
			return nil
		}
	}
}

// wake sets process 1 going again when somebody inside has stopped it: no program there has a reason to.
func wake() {
	text, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return
	}
	// The name in parentheses may hold anything: the state is the first field after the last one.
	if rest := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(rest) > 0 && string(rest[0]) == "T" {
		_ = syscall.Kill(1, syscall.SIGCONT)
	}
}

// dial tries until the socket is there: the first bridge may come before process 1 has opened it.
func dial(path string) (int, error) {
	deadline := time.Now().Add(connectFor)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("socket: %w", err)
		}
		if err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err == nil {
			return fd, nil
		}
		_ = syscall.Close(fd)
		if time.Now().After(deadline) {
			return -1, fmt.Errorf("connect %s: %w", path, err)
		}
		time.Sleep(pause)
	}
}
