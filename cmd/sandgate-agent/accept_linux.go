package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
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

// bridge is a connection whose bytes go through two pipes; the socket only tells the program that brought them when it ends.
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
	b.once.Do(func() { _, _, _ = b.in.Close(), b.out.Close(), b.UnixConn.Close() })
	return nil
}

// SetDeadline implements net.Conn.
func (b *bridge) SetDeadline(t time.Time) error {
	return errors.Join(b.SetReadDeadline(t), b.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (b *bridge) SetReadDeadline(t time.Time) error { return b.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (b *bridge) SetWriteDeadline(t time.Time) error { return b.out.SetWriteDeadline(t) }

// stdio is the host's first bridge: what this process began with as its stdin and stdout.
type stdio struct {
	in, out *os.File
	once    sync.Once
}

// takeStdio gives that bridge, and puts /dev/null in its place, so that nothing else here holds it; nil when there is none.
func takeStdio() *stdio {
	var files [2]*os.File
	for fd := range files {
		var st syscall.Stat_t
		if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return nil
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = null.Close() }()
	for fd := range files {
		other, err := syscall.Dup(fd)
		if err != nil {
			return nil
		}
		syscall.CloseOnExec(other)
		_ = syscall.SetNonblock(other, true) // so that closing ends a read
		files[fd] = os.NewFile(uintptr(other), "bridge")
		if err := syscall.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil
		}
	}
	return &stdio{in: files[0], out: files[1]}
}

// Read reads what the host sent.
func (s *stdio) Read(p []byte) (int, error) { return s.in.Read(p) }

// Write sends to the host.
func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

// Close gives up both.
func (s *stdio) Close() error {
	s.once.Do(func() { _, _ = s.in.Close(), s.out.Close() })
	return nil
}
