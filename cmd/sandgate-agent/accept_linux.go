package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// handedOver makes of a listener of sockets one of bridges: each who connects hands over the two pipes that the bridge
// consists of, and stays there as long as it lives.
type handedOver struct{ *net.UnixListener }

// Accept gives the next bridge. Only root inside can connect; who hands over nothing is sent away.
func (l handedOver) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		b, err := receive(conn)
		if err == nil {
			return b, nil
		}
		_ = conn.Close()
	}
}

// receive takes the descriptors. They come in one message with the first byte, right after connecting.
func receive(conn *net.UnixConn) (*bridge, error) {
	if err := conn.SetReadDeadline(time.Now().Add(connectFor)); err != nil {
		return nil, err
	}
	var text [1]byte
	var rights [64]byte
	_, n, _, _, err := conn.ReadMsgUnix(text[:], rights[:])
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		got, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, got...)
	}
	var files []*os.File
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
		_ = syscall.SetNonblock(fd, true) // for deadlines, and so that closing ends a read
		files = append(files, os.NewFile(uintptr(fd), "bridge"))
	}
	if len(files) != 2 || text[0] != handOver {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("%d descriptors", len(files))
	}
	return &bridge{UnixConn: conn, in: files[0], out: files[1]}, nil
}

// streams makes a bridge of this process's standard input and output, which are the host's pipes when a sandbox begins, and
// has /dev/null in their place: nothing else inside shall hold them.
func streams() (net.Conn, error) {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer func() { _ = syscall.Close(null) }()
	var files [2]*os.File
	for i := range files {
		fd, err := unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("take stream %d: %w", i, err)
		}
		if err := syscall.Dup3(null, i, 0); err != nil {
			return nil, fmt.Errorf("replace stream %d: %w", i, err)
		}
		_ = syscall.SetNonblock(fd, true) // for deadlines, and so that closing ends a read
		files[i] = os.NewFile(uintptr(fd), "bridge")
	}
	return &bridge{in: files[0], out: files[1]}, nil
}

// bridge is a connection whose bytes go through two pipes; the socket only tells the program that brought them when it ends.
// The first bridge has none.
type bridge struct {
	*net.UnixConn
	in, out *os.File
	once    sync.Once
}

// Read reads what the host sent.
func (b *bridge) Read(p []byte) (int, error) { return b.in.Read(p) }

// Write sends to the host.
func (b *bridge) Write(p []byte) (int, error) { return b.out.Write(p) }

// Close gives up the pipes first: when the program that brought them ends, nothing of the host is held here any more.
func (b *bridge) Close() error {
	b.once.Do(func() {
		_, _ = b.in.Close(), b.out.Close()
		if b.UnixConn != nil {
			_ = b.UnixConn.Close()
		}
	})
	return nil
}

// LocalAddr implements net.Conn.
func (b *bridge) LocalAddr() net.Addr { return b.addr() }

// RemoteAddr implements net.Conn.
func (b *bridge) RemoteAddr() net.Addr { return b.addr() }

func (b *bridge) addr() net.Addr { return &net.UnixAddr{Name: "bridge", Net: "unix"} }

// SetDeadline implements net.Conn.
func (b *bridge) SetDeadline(t time.Time) error {
	return errors.Join(b.SetReadDeadline(t), b.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (b *bridge) SetReadDeadline(t time.Time) error { return b.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (b *bridge) SetWriteDeadline(t time.Time) error { return b.out.SetWriteDeadline(t) }
