package agent

import (
	"io"
	"net"
	"time"
)

// Conn makes a net.Conn of any byte stream. Deadlines have no effect on one that has none of its own: callers end a
// stuck call by closing.
func Conn(rwc io.ReadWriteCloser) net.Conn {
	if c, ok := rwc.(net.Conn); ok {
		return c
	}
	return streamConn{rwc}
}

type streamConn struct{ io.ReadWriteCloser }

func (streamConn) LocalAddr() net.Addr              { return bridgeAddr{} }
func (streamConn) RemoteAddr() net.Addr             { return bridgeAddr{} }
func (streamConn) SetDeadline(time.Time) error      { return nil }
func (streamConn) SetReadDeadline(time.Time) error  { return nil }
func (streamConn) SetWriteDeadline(time.Time) error { return nil }

type bridgeAddr struct{}

func (bridgeAddr) Network() string { return "bridge" }
func (bridgeAddr) String() string  { return "sandbox" }
