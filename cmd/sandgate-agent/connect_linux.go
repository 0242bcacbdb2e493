package main

import (
	"fmt"
	"syscall"
	"time"
)

const (
	connectFor  = 10 * time.Second
	bridgeBytes = 256 << 10
)

// connect joins stdin and stdout to a socket of process 1. Plain blocking reads and writes: two threads, no poller,
// nothing between the bytes. It ends when either side does.
func connect(path string) error {
	fd, err := dial(path)
	if err != nil {
		return err
	}
	_ = syscall.SetNonblock(0, false)
	_ = syscall.SetNonblock(1, false)
	done := make(chan error, 2)
	go func() { done <- pump(1, fd) }()
	go func() { done <- pump(fd, 0) }()
	return <-done
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
			_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, bridgeBytes)
			return fd, nil
		}
		_ = syscall.Close(fd)
		if time.Now().After(deadline) {
			return -1, fmt.Errorf("connect %s: %w", path, err)
		}
		time.Sleep(pause)
	}
}

func pump(to, from int) error {
	buf := make([]byte, bridgeBytes)
	for {
		n, err := syscall.Read(from, buf)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return nil
		}
		for p := buf[:n]; len(p) > 0; {
			n, err := syscall.Write(to, p)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return fmt.Errorf("write: %w", err)
			}
			p = p[n:]
		}
	}
}
